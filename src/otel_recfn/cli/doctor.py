"""The command ``otel-recfn doctor``, which says what works here and what doesn't, each finding as
soon as it is known.

The first examination needs nothing but Python. Those that load PyTorch come last, in processes of
their own, because an import of torch takes seconds, and a broken one may crash. How spans are
exported is known only as far as the environment sets it up; the program's own code may set up
something else.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_recfn.errors import RecfnError
from otel_recfn.support.safe_texts import (
    safe_error,
    safe_request_error,
    safe_text,
    secrets_from_environment,
    secrets_of,
)
from otel_recfn.version import __version__

if TYPE_CHECKING:
    from otel_recfn.pytorch.details import Detail
    from otel_recfn.pytorch.observer_build import NativeLibrary

MARKS = {True: "ok", False: "no", None: "--"}
NAME_WIDTH = 12
Finding = tuple[bool | None, str]
"""Whether it is good (None: information), then the fact, and if it is bad the way out."""


def doctor() -> int:
    """Print all findings; returns 0 if PyTorch's operators can become spans."""
    failed = []
    for name, (ok, text) in examine():
        print(line(name, ok, text), flush=True)
        failed += [name] if ok is False else []
    if failed:
        print(f"\nNot everything works here: {', '.join(failed)}.")
        return 1
    print("\nPyTorch's operators can become spans here.")
    return 0


def line(name: str, ok: bool | None, text: str) -> str:
    """The text that is printed of a finding."""
    head = f"{MARKS[ok]}  {name:<{NAME_WIDTH}}"
    return textwrap.indent(text, " " * len(head)).replace(" " * len(head), head, 1)


def examine() -> Iterator[tuple[str, Finding]]:
    """All findings with their names, each as soon as it is known."""
    for name, examination in examinations().items():
        yield name, examine_safely(examination)


def examinations() -> dict[str, Callable[[], Finding]]:
    """The examinations by name, those that load PyTorch last."""
    recording = {"settings": settings, "recorder": recorder, "torch": torch, "cache": cache}
    exporting = {"SDK": sdk, "exporters": exporters, "endpoint": endpoint}
    return {
        "package": package,
        **recording,
        **exporting,
        "observer": observer,
        "callbacks": callbacks,
    }


def examine_safely(examination: Callable[[], Finding]) -> Finding:
    """The finding of an examination; an unexpected error is a bad finding."""
    try:
        return examination()
    except Exception as error:
        return False, f"could not be examined: {safe_error(error, secrets_from_environment())}"


# --- recording


def package() -> Finding:
    """The versions that a bug report should name."""
    return (
        True,
        f"otel-recfn {__version__}, Python {platform.python_version()}, {platform.platform()}",
    )


def settings() -> Finding:
    """The settings in the environment. A wrong value is ignored."""
    from otel_recfn.settings.table import Settings
    from otel_recfn.settings.variables import wrong_variables

    if wrong := wrong_variables(os.environ):
        return False, "; ".join(wrong)
    found = Settings.resolve({})
    values = {
        item.name: getattr(found, item.name)
        for item in fields(found)
        if getattr(found, item.name) != item.default
    }
    return True, ", ".join(f"{name}={value!r}" for name, value in values.items()) or "the defaults"


def recorder() -> Finding:
    """Whether the native part is there, and if not, why."""
    from otel_recfn.support.native_part import native_part

    return _try_finding(lambda: str(native_part().__file__))


def torch() -> Finding:
    """The installed torch, found by its files."""
    from otel_recfn.pytorch import observer_build

    def found() -> str:
        installed = observer_build.find_torch()
        return f"{installed.version} in {installed.directory}"

    return _try_finding(found)


def cache() -> Finding:
    """Whether compiled observers may be kept and trusted here."""
    from otel_recfn.pytorch import build_cache

    return _try_finding(lambda: f"{build_cache.open_directory()}, only you or root can write there")


def _try_finding(find: Callable[[], str]) -> Finding:
    try:
        return True, find()
    except RecfnError as error:
        return False, str(error)


# --- exporting

CONNECT_SECONDS = 0.5
REQUEST_SECONDS = 1.5
DEFAULT_PORTS = {"grpc": 4317, "http/protobuf": 4318}
COLLECTOR = (
    "start a collector there (see collector-config.yaml and docs/collector.md), or set"
    " OTEL_EXPORTER_OTLP_ENDPOINT"
)
SETTINGS = "see its log, and look at OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _HEADERS"


def sdk() -> Finding:
    """Whether the SDK is installed, and not switched off."""
    from otel_recfn.settings.variables import sdk_is_disabled

    version = importlib.metadata.version("opentelemetry-sdk")
    if sdk_is_disabled():
        return (
            False,
            (
                f"opentelemetry-sdk {version}, but OTEL_SDK_DISABLED=true: nothing is recorded;"
                " unset it"
            ),
        )
    return True, f"opentelemetry-sdk {version}, OTEL_SDK_DISABLED not set to true"


def exporters() -> Finding:
    """The exporters that OTEL_TRACES_EXPORTER asks for, as opentelemetry-instrument reads it."""
    installed = {
        entry.name
        for entry in importlib.metadata.entry_points(group="opentelemetry_traces_exporter")
    }
    asked = [
        name.strip()
        for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",")
        if name.strip()
    ]
    listed = f"installed: {', '.join(sorted(installed))}"
    if not asked:
        return None, f"OTEL_TRACES_EXPORTER is not set; {listed}"
    if asked == ["none"]:
        return False, f"OTEL_TRACES_EXPORTER=none: no spans leave the process; unset it ({listed})"
    missing = [name for name in asked if name not in installed]
    if missing:
        return (
            False,
            (
                f"OTEL_TRACES_EXPORTER asks for {safe_text(', '.join(missing))}, not installed;"
                f" {listed}"
            ),
        )
    return True, f"OTEL_TRACES_EXPORTER={','.join(asked)}; {listed}"


def endpoint() -> Finding:
    """Whether something listens at the OTLP endpoint.

    Another machine is contacted only if the environment names it.
    """
    protocol = _traces_setting("PROTOCOL") or "grpc"
    named = _traces_setting("ENDPOINT")
    port = DEFAULT_PORTS.get(protocol, 4318)
    url = named or f"http://localhost:{port}"
    where = f"{safe_text(url, secrets_of(url))} ({protocol}{'' if named else ', the default'})"
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else port)
        with socket.create_connection(address, timeout=CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        why = safe_request_error(error, secrets_of(url))
        return False if named else None, f"{where}: nothing listens there ({why}); {COLLECTOR}"
    refused = _request_refusal(protocol)
    if refused is None:
        return True, f"{where}: takes OTLP requests"
    other, path = ("http/protobuf", "/v1/traces") if protocol == "grpc" else ("grpc", "")
    if _request_refusal(other, f"{parts.scheme or 'http'}://{parts.netloc}{path}") is None:
        return False, f"{where}: {_other_protocol(other)}"
    return (
        False,
        f"{where}: something listens there, but takes no OTLP request ({refused}); {SETTINGS}",
    )


def _other_protocol(spoken: str) -> str:
    """The way out if the endpoint speaks another protocol."""
    traces_protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
    variable = (
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" if traces_protocol else "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    looks, other = ("gRPC", "HTTP") if spoken == "grpc" else ("HTTP", "gRPC")
    port = DEFAULT_PORTS["http/protobuf" if spoken == "grpc" else "grpc"]
    return (
        f"this looks like {looks}: set {variable}={spoken}, or name the port for {other}, usually"
        f" {port}"
    )


def _request_refusal(protocol: str, endpoint: str | None = None) -> str | None:
    """The reason for which an empty request, sent as the program's exporter sends one, was
    refused; None if it was accepted.
    """
    module = "grpc" if protocol == "grpc" else "http"
    made = import_module(
        f"opentelemetry.exporter.otlp.proto.{module}.trace_exporter"
    ).OTLPSpanExporter
    last_message = _LastMessage()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(last_message)
    propagated, logger.propagate = logger.propagate, False
    try:
        exporter = made(endpoint=endpoint, timeout=REQUEST_SECONDS)
        taken = exporter.export([]).name == "SUCCESS"
        exporter.shutdown()
    finally:
        logger.propagate = propagated
        logger.removeHandler(last_message)
    if taken:
        return None
    return safe_text(last_message.message, secrets_from_environment()) or "no answer"


class _LastMessage(logging.Handler):
    """A log handler that keeps the last message, which says why a request failed."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


def _traces_setting(name: str) -> str:
    """An OTLP setting from the environment: the variable for traces, else the one for all
    signals.
    """
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
        or ""
    )


# --- libraries that load PyTorch

LOAD_SECONDS = 300
LOAD_OBSERVER = """
import torch.utils.checkpoint
from otel_recfn.pytorch.details import missing_in_python
from otel_recfn.pytorch.observer import TorchObserver, features
TorchObserver().ensure_loaded()
print(features(), *[f"-{name}" for name in missing_in_python()])
"""
LOAD_CALLBACKS = """
import torch
from otel_recfn.callbacks import torch_callbacks
print(torch_callbacks.load(lambda *_error: True).features())
"""


def observer() -> Finding:
    """Whether operators can be observed, and whether PyTorch has the private names that we look
    for.
    """
    from otel_recfn.pytorch import details, observer_build

    return _library(
        observer_build.TORCH_OBSERVER, LOAD_OBSERVER, {**details.OPERATORS, **details.PYTHON}
    )


def callbacks() -> Finding:
    """Whether callbacks in Python can be called.

    If not, it is no failure, as spans and files need none.
    """
    from otel_recfn.pytorch import details, observer_build

    ok, text = _library(observer_build.TORCH_CALLBACKS, LOAD_CALLBACKS, details.CALLBACKS)
    return ok or None, text


def _library(library: NativeLibrary, program: str, known: Mapping[str, Detail]) -> Finding:
    """The finding on a library that is compiled against torch."""
    from otel_recfn.pytorch import details, observer_build

    try:
        path = observer_build.find_built(library)
        if path is None:
            observer_build.find_compiler()
    except RecfnError as error:
        return False, f"cannot be built: {error}"
    if path is None:
        return (
            True,
            (
                f"not built yet; built at first use, about {library.seconds} s, or now with"
                " `otel-recfn build`"
            ),
        )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LOAD_SECONDS,
    )
    if done.returncode:
        last = (
            done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"]
        )[-1]
        return False, f"{path} cannot be loaded: {last}"
    found, missing = details.found_and_missing(done.stdout)
    if missing:
        return None, f"{path}, but this torch lacks details; {details.losses(missing, known)}"
    return True, f"{path}, found in this torch: {', '.join(found)}"
