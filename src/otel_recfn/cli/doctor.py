"""``otel-recfn doctor``: what works here and what doesn't, each finding as soon as it is known.

The first needs nothing but Python. What shows only where PyTorch is loaded is examined beside the rest, in a process of its
own, because an import of torch takes seconds, and a broken one may take its process down; it comes last.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING

from otel_recfn.errors import RecfnError
from otel_recfn.version import __version__

if TYPE_CHECKING:
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
    verdict = f"Not everything works here: {', '.join(failed)}." if failed else "PyTorch's operators can become spans here."
    print(f"\n{verdict}")
    return 1 if failed else 0


def line(name: str, ok: bool | None, text: str) -> str:
    """The line that prints a finding."""
    head = f"{MARKS[ok]}  {name:<{NAME_WIDTH}}"
    return textwrap.indent(text, " " * len(head)).replace(" " * len(head), head, 1)


def examine() -> Iterator[tuple[str, Finding]]:
    """All findings with their names, each as soon as it is known."""
    yield "package", package()
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(loaded)
        for name, examination in examinations().items():
            yield name, careful(examination)
        if not loading.done():
            print("... waits for `import torch` in a process of its own", file=sys.stderr, flush=True)
        for name in LOADED:
            yield name, careful(lambda: loading.result()[name])  # noqa: B023 - called at once


def examinations() -> dict[str, Callable[[], Finding]]:
    """The examinations of this process."""
    from otel_recfn.cli import doctor_export as export

    recording = {"settings": settings, "recorder": recorder, "compiler": compiler, "torch": torch, "cache": cache}
    exporting = {"SDK": export.sdk, "provider": export.provider, "exporters": export.exporters, "endpoint": export.endpoint}
    return {**recording, "context": export.context, **exporting, "native OTLP": export.native_otlp}


def careful(examination: Callable[[], Finding]) -> Finding:
    """The findings of an examination, of which an unexpected error is a bad one."""
    try:
        return examination()
    except Exception as error:
        from otel_recfn.support.texts import safe_error, secrets_from_environment

        return False, f"could not be examined: {safe_error(error, secrets_from_environment())}"


# --- what records


def package() -> Finding:
    """Versions, for a bug report."""
    return True, f"otel-recfn {__version__}, Python {platform.python_version()}, {platform.platform()}"


def settings() -> Finding:
    """The settings in the environment. A wrong value keeps everything from starting."""
    from otel_recfn.settings.table import Settings, unknown_variables

    try:
        found = Settings.resolve({})
    except RecfnError as error:
        return False, str(error)
    unknown = unknown_variables(os.environ)
    if unknown:
        return False, "; ".join(unknown)
    values = {item.name: getattr(found, item.name) for item in fields(found) if getattr(found, item.name) != item.default}
    return True, ", ".join(f"{name}={value!r}" for name, value in values.items()) or "the defaults"


def recorder() -> Finding:
    """Whether there is the native part, and if not, why."""
    from otel_recfn.support.native_part import native_part

    return _found(lambda: str(native_part().__file__))


def compiler() -> Finding:
    """Whether there is a compiler, which is needed once per torch, until the observer is built."""
    from otel_recfn.pytorch import observer_build

    try:
        command = observer_build.find_compiler()
    except RecfnError as error:
        built = False
        with suppress(RecfnError):  # the findings on torch and on the cache say why
            built = all(observer_build.find_built(library) is not None for library in observer_build.LIBRARIES)
        return None if built else False, str(error)
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=LOAD_SECONDS)
    version = done.stdout.splitlines()[0] if done.stdout else f"{command[0]} --version said nothing"
    return True, f"{' '.join(command)}: {version}"


def torch() -> Finding:
    """The installed torch, found by its files."""
    from otel_recfn.pytorch import observer_build

    def found() -> str:
        installed = observer_build.find_torch()
        return f"{installed.version} in {installed.directory}"

    return _found(found)


def cache() -> Finding:
    """Whether compiled observers may be kept and trusted here."""
    from otel_recfn.pytorch import build_cache

    return _found(lambda: f"{build_cache.open_directory()}, only you or root can write there")


def _found(find: Callable[[], str]) -> Finding:
    try:
        return True, find()
    except RecfnError as error:
        return False, str(error)


# --- what shows only where PyTorch is loaded

LOAD_SECONDS = 300
LOADED = ("observer", "callbacks", "details")
LOAD_OBSERVER = """
from otel_recfn.recording.recorder import recorder
from otel_recfn.pytorch.observer import TorchObserver, features
observer = TorchObserver(recorder)
observer.ensure_loaded()
print(features())
"""
LOAD_CALLBACKS = """
from otel_recfn.callbacks import torch_callbacks
print(torch_callbacks.load(lambda *_error: True).features())
"""
FIND_DETAILS = """
import torch.utils.checkpoint
from otel_recfn.pytorch import details
print(*details.missing_in_python())
"""
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys, traceback
import torch
for program in sys.argv[1:]:
    said, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            exec(program, {})
    except BaseException as raised:
        error = traceback.format_exception_only(raised)[-1].strip()
    print(json.dumps([said.getvalue(), error]), flush=True)
"""


def loaded() -> dict[str, Finding]:
    """The findings on PyTorch's libraries and details, by their names in LOADED."""
    from otel_recfn.pytorch import details, observer_build

    programs = {"details": FIND_DETAILS, "observer": LOAD_OBSERVER, "callbacks": LOAD_CALLBACKS}
    libraries = {"observer": observer_build.TORCH_OBSERVER, "callbacks": observer_build.TORCH_CALLBACKS}
    findings: dict[str, Finding] = {}
    paths = {name: _built(libraries[name], findings, name) for name in libraries}
    places = {name: path for name, path in paths.items() if path}
    try:
        observer_build.find_torch()
        places = {"details": "", **places}
    except RecfnError:
        findings["details"] = None, "torch is not here, so nothing is looked for in it"
    said = _output_with_torch([programs[name] for name in places])
    for (name, path), (text, error) in zip(places.items(), said, strict=True):
        known = {"details": details.PYTHON, "observer": details.OPERATORS, "callbacks": details.CALLBACKS}[name]
        found, missing = ([], text.split()) if name == "details" else details.found_and_missing(text)
        if error:
            findings[name] = False, f"{path} cannot be loaded: {error}" if path else f"torch cannot be examined: {error}"
        elif missing:
            lost = details.losses(missing, known)
            findings[name] = None, f"{path}, but this torch lacks details; {lost}" if path else f"this torch lacks some; {lost}"
        elif path:
            findings[name] = True, f"{path}, found in this torch: {', '.join(found)}"
        else:
            findings[name] = True, "this torch has all that is looked for in Python"
    ok, text = findings["callbacks"]
    return findings | {"callbacks": (ok or None, text)}  # spans and files need no callbacks


def _built(library: NativeLibrary, findings: dict[str, Finding], name: str) -> str:
    """The path of a built library; empty, with a finding that says why, if it can't be loaded yet."""
    from otel_recfn.pytorch import observer_build

    try:
        path = observer_build.find_built(library)
        if path is not None:
            return str(path)
        observer_build.find_compiler()
        text = f"not built yet; built at first use, about {library.seconds} s, or now with `otel-recfn build`"
        findings[name] = True, text
    except RecfnError as error:
        findings[name] = False, f"cannot be built: {error}"
    return ""


def _output_with_torch(programs: Sequence[str]) -> list[tuple[str, str]]:
    """The output of each program in a process with torch, and the error that ended it. A crash ends the later ones too."""
    if not programs:
        return []
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, *programs]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return [("", f"it took over {LOAD_SECONDS} s; does `import torch` work?")] * len(programs)
    said = [(text, error) for text, error in map(json.loads, done.stdout.splitlines())]
    last = (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]
    return [*said, *[("", last)] * (len(programs) - len(said))]
