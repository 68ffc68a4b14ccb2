"""The doctor's findings on exporting: OpenTelemetry's context, SDK, provider, exporters and endpoint, as the environment sets
them up. The program's own code may set up others."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import socket
from importlib import import_module
from urllib.parse import urlsplit

from otel_recfn.errors import RecorderUnavailable
from otel_recfn.support.texts import safe_endpoint, safe_request_error, safe_text, secrets_from_environment, secrets_of

Finding = tuple[bool | None, str]
"""Whether it is good (None: information), then the fact, and if it is bad the way out."""

CONNECT_SECONDS = 0.5
REQUEST_SECONDS = 1.5
DEFAULT_PORTS = {"grpc": 4317, "http/protobuf": 4318}
COLLECTOR = "start a collector there (see collector-config.yaml and docs/collector.md), or set OTEL_EXPORTER_OTLP_ENDPOINT"
SETTINGS = "see its log, and look at OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _HEADERS"


def context() -> Finding:
    """Whether changes of the current span are noticed."""
    try:
        from otel_recfn.recording.recorder import recorder
        from otel_recfn.sources.otel_context import ContextWatcher
        from otel_recfn.sources.protocol import Wanted
    except RecorderUnavailable:
        return None, "there is no recorder, so nobody looks at the current span"
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted())
    try:
        return True, watcher.status()
    finally:
        watcher.disable()


def sdk() -> Finding:
    """Whether the SDK is installed, and not switched off."""
    version = importlib.metadata.version("opentelemetry-sdk")
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False, f"opentelemetry-sdk {version}, but OTEL_SDK_DISABLED=true: no spans; unset it"
    return True, f"opentelemetry-sdk {version}, OTEL_SDK_DISABLED not set to true"


def provider() -> Finding:
    """Whether a provider is set, which in a process of its own happens only under opentelemetry-instrument."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    current = trace.get_tracer_provider()
    name = f"{type(current).__module__}.{type(current).__qualname__}"
    if isinstance(current, TracerProvider):
        return True, f"{name}, the SDK's"
    if isinstance(current, trace.ProxyTracerProvider):
        text = "none set in this process; your program sets one, or opentelemetry-instrument does, before or after instrument()"
        return None, text
    return False, f"{name} is not the SDK's and takes no spans of ours; set the SDK's TracerProvider"


def exporters() -> Finding:
    """The exporters that OTEL_TRACES_EXPORTER asks for, as opentelemetry-instrument reads it."""
    installed = {entry.name for entry in importlib.metadata.entry_points(group="opentelemetry_traces_exporter")}
    asked = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    listed = f"installed: {', '.join(sorted(installed))}"
    if not asked:
        return None, f"OTEL_TRACES_EXPORTER is not set; {listed}"
    if asked == ["none"]:
        return False, f"OTEL_TRACES_EXPORTER=none: no spans leave the process; unset it ({listed})"
    missing = [name for name in asked if name not in installed]
    if missing:
        return False, f"OTEL_TRACES_EXPORTER asks for {safe_text(', '.join(missing))}, not installed; {listed}"
    return True, f"OTEL_TRACES_EXPORTER={','.join(asked)}; {listed}"


def endpoint() -> Finding:
    """Whether something listens at the OTLP endpoint. Another machine is contacted only if the environment names it."""
    protocol = _traces_setting("PROTOCOL") or "grpc"
    named = _traces_setting("ENDPOINT")
    port = DEFAULT_PORTS.get(protocol, 4318)
    url = named or f"http://localhost:{port}"
    where = f"{safe_endpoint(url)} ({protocol}{'' if named else ', the default'})"
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else port)
        with socket.create_connection(address, timeout=CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        why = safe_request_error(error, secrets_of(url))
        return False if named else None, f"{where}: nothing listens there ({why}); {COLLECTOR}"
    refused = _refusal_of_a_request(protocol)
    if refused is None:
        return True, f"{where}: takes OTLP requests"
    other, path = ("http/protobuf", "/v1/traces") if protocol == "grpc" else ("grpc", "")
    if _refusal_of_a_request(other, f"{parts.scheme or 'http'}://{parts.netloc}{path}") is None:
        return False, f"{where}: {_other_protocol(other)}"
    return False, f"{where}: something listens there, but takes no OTLP request ({refused}); {SETTINGS}"


def _other_protocol(spoken: str) -> str:
    """The way out if the endpoint speaks another protocol."""
    of_traces = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
    variable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" if of_traces else "OTEL_EXPORTER_OTLP_PROTOCOL"
    looks, other = ("gRPC", "HTTP") if spoken == "grpc" else ("HTTP", "gRPC")
    port = DEFAULT_PORTS["http/protobuf" if spoken == "grpc" else "grpc"]
    return f"this looks like {looks}: set {variable}={spoken}, or name the port for {other}, usually {port}"


def _refusal_of_a_request(protocol: str, endpoint: str | None = None) -> str | None:
    """Why an empty request, sent as the program's exporter would send it, was refused; None if it was accepted."""
    module = "grpc" if protocol == "grpc" else "http"
    made = import_module(f"opentelemetry.exporter.otlp.proto.{module}.trace_exporter").OTLPSpanExporter
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
    return None if taken else safe_text(last_message.message, secrets_from_environment()) or "no answer"


class _LastMessage(logging.Handler):
    """A log handler that keeps the last message, which says why a request failed."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


def native_otlp() -> Finding:
    """Whether ``span_exporter`` could take the place of the provider's exporter."""
    try:
        from otel_recfn.sinks.otlp.exporters import UnreadableExporterError, is_official, protocol_of, transport_of
        from otel_recfn.sinks.spans.provider import ProviderResolver
    except RecorderUnavailable:
        return None, "there is no recorder, so nothing encodes spans"
    target = ProviderResolver().resolve()
    exporter = target.sole_exporter() if target is not None else None
    protocol = protocol_of(exporter) if is_official(exporter) else None
    if protocol is None:
        why = "none is set in this process" if target is None else "one OTLP exporter is not all that its processors do"
        return None, f"span_exporter='otlp' is there, in place of a provider's processors (docs/otlp.md); {why}"
    try:
        transport_of(exporter, owned=False)
    except UnreadableExporterError as error:
        return None, f"not for this exporter: {error}"
    there = f"the provider's only exporter is OTLP over {protocol}: span_exporter='otlp-{protocol}' is there"
    return None, f"{there}; spans would be encoded without the GIL, and the provider's span processors see none of ours"


def _traces_setting(name: str) -> str:
    """An OTLP setting from the environment: the variable for traces, else the one for all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""
