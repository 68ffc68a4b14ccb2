"""The doctor on what exports: OpenTelemetry's context, SDK, provider, exporters and endpoint, as this process's environment
sets them up. The program's own code may set up others."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from urllib.parse import urlsplit

from otel_recfn.cli.check import Check
from otel_recfn.recording.backend import recorder
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.protocol import Wanted

CONNECT_SECONDS = 0.5
DEFAULT_PORTS = {"grpc": 4317, "http/protobuf": 4318}
COLLECTOR = "start a collector there (see collector-config.yaml and docs/collector.md), or set OTEL_EXPORTER_OTLP_ENDPOINT"


def context() -> Check:
    """Whether changes of the current span are noticed."""
    watcher = ContextWatcher(recorder())
    watcher.enable(Wanted())
    try:
        return Check("context", True, watcher.status())
    finally:
        watcher.disable()


def sdk() -> Check:
    """Whether the SDK is installed, and not switched off."""
    version = importlib.metadata.version("opentelemetry-sdk")
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Check("SDK", False, f"opentelemetry-sdk {version}, but OTEL_SDK_DISABLED=true: no spans; unset it")
    return Check("SDK", True, f"opentelemetry-sdk {version}, OTEL_SDK_DISABLED not set to true")


def provider() -> Check:
    """Which provider is set. Here, where no program has run, there is none, except under opentelemetry-instrument."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    current = trace.get_tracer_provider()
    name = f"{type(current).__module__}.{type(current).__qualname__}"
    if isinstance(current, TracerProvider):
        return Check("provider", True, f"{name}, the SDK's")
    if isinstance(current, trace.ProxyTracerProvider):
        text = "none set in this process; your program sets one, or opentelemetry-instrument does, before or after instrument()"
        return Check("provider", None, text)
    return Check("provider", False, f"{name} is not the SDK's and takes no spans of ours; set the SDK's TracerProvider")


def exporters() -> Check:
    """The exporters that OTEL_TRACES_EXPORTER asks for, as opentelemetry-instrument reads it."""
    installed = {entry.name for entry in importlib.metadata.entry_points(group="opentelemetry_traces_exporter")}
    asked = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    listed = f"installed: {', '.join(sorted(installed))}"
    if not asked:
        return Check("exporters", None, f"OTEL_TRACES_EXPORTER is not set; {listed}")
    if asked == ["none"]:
        return Check("exporters", False, f"OTEL_TRACES_EXPORTER=none: no spans leave the process; unset it ({listed})")
    missing = [name for name in asked if name not in installed]
    if missing:
        return Check("exporters", False, f"OTEL_TRACES_EXPORTER asks for {', '.join(missing)}, not installed; {listed}")
    return Check("exporters", True, f"OTEL_TRACES_EXPORTER={','.join(asked)}; {listed}")


def endpoint() -> Check:
    """Whether something listens where OTLP goes. Another machine is contacted only if the environment names it."""
    protocol = _traces_setting("PROTOCOL") or "grpc"
    named = _traces_setting("ENDPOINT")
    port = DEFAULT_PORTS.get(protocol, 4318)
    url = named or f"http://localhost:{port}"
    where = f"{url} ({protocol}{'' if named else ', the default'})"
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else port)
        with socket.create_connection(address, timeout=CONNECT_SECONDS):
            return Check("endpoint", True, f"{where}: something listens there")
    except (OSError, ValueError) as error:
        return Check("endpoint", False if named else None, f"{where}: nothing listens there ({error}); {COLLECTOR}")


def _traces_setting(name: str) -> str:
    """A setting of the OTLP exporter: the variable for traces, else the one for all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""
