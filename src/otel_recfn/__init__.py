"""OpenTelemetry instrumentation for PyTorch's RecordFunction.

Names are resolved on first use, so that ``import otel_recfn`` loads neither numpy nor the exporters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_recfn.version import __version__

if TYPE_CHECKING:
    from otel_recfn.instrumentor import OtelRecordFunctionInstrumentor
    from otel_recfn.model.scope import RecordScope
    from otel_recfn.profiling import profile
    from otel_recfn.sinks.in_memory import InMemorySink

    record_function: type[Any]

_HOMES = {
    "InMemorySink": "otel_recfn.sinks.in_memory",
    "OtelRecordFunctionInstrumentor": "otel_recfn.instrumentor",
    "RecordScope": "otel_recfn.model.scope",
    "profile": "otel_recfn.profiling",
}

__all__ = ["InMemorySink", "OtelRecordFunctionInstrumentor", "RecordScope", "__version__", "profile", "record_function"]


def __getattr__(name: str) -> Any:
    if name == "record_function":
        from otel_recfn.recording.backend import recorder

        value: Any = recorder().record_function
    elif name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
