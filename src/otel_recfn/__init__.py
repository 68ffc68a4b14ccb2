"""OpenTelemetry instrumentation for PyTorch's RecordFunction.

Names are resolved when they are first used, so that ``import otel_recfn`` loads neither numpy nor
the exporters. Without the native part all names can be imported: ``record_function``, ``step`` and
``batch`` then record nothing, and ``profile`` raises ``RecorderUnavailable`` when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_recfn.version import __version__

if TYPE_CHECKING:
    from otel_recfn.instrumentor import OtelRecordFunctionInstrumentor
    from otel_recfn.model.events import RecordScope
    from otel_recfn.model.python_calls import PythonCalls
    from otel_recfn.profiling import profile
    from otel_recfn.sinks.in_memory import InMemorySink
    from otel_recfn.sinks.protocol import Sink
    from otel_recfn.user_ranges import batch, step

    record_function: type[Any]

_MODULES = {
    "InMemorySink": "otel_recfn.sinks.in_memory",
    "OtelRecordFunctionInstrumentor": "otel_recfn.instrumentor",
    "PythonCalls": "otel_recfn.model.python_calls",
    "RecordScope": "otel_recfn.model.events",
    "Sink": "otel_recfn.sinks.protocol",
    "batch": "otel_recfn.user_ranges",
    "profile": "otel_recfn.profiling",
    "record_function": "otel_recfn.user_ranges",
    "step": "otel_recfn.user_ranges",
}
"""The module that defines each public name."""

__all__ = [
    "InMemorySink",
    "OtelRecordFunctionInstrumentor",
    "PythonCalls",
    "RecordScope",
    "Sink",
    "__version__",
    "batch",
    "profile",
    "record_function",
    "step",
]

_MOVED = {
    "DebugInfoGuard",
    "DebugInfoKind",
    "DisableRecordFunctionGuard",
    "INVALID_CALLBACK_HANDLE",
    "NUM_SCOPES",
    "PropagatingExecutor",
    "PropagatingThread",
    "RecordFunction",
    "RecordFunctionCallback",
    "RecordFunctionGuard",
    "RecordFunctionTLS",
    "StepCallbacks",
    "ThreadLocalState",
    "ThreadLocalStateGuard",
    "add_global_callback",
    "add_thread_local_callback",
    "call_end_callbacks_on_future",
    "clear_callbacks",
    "clear_global_callbacks",
    "clear_thread_local_callbacks",
    "debug_info_get",
    "debug_info_peek",
    "debug_info_pop",
    "debug_info_push",
    "disable_callback",
    "enable_record_function",
    "get_record_function_tls",
    "get_step_callbacks",
    "get_step_callbacks_unless_empty",
    "has_callbacks",
    "has_global_callbacks",
    "has_thread_local_callbacks",
    "is_record_function_enabled",
    "propagate",
    "record_edge_scope_with_debug_handle_and_inputs",
    "record_function_enter",
    "record_function_enter_new",
    "record_function_exit",
    "record_function_with_inputs",
    "record_function_with_inputs_outputs",
    "record_function_with_scope",
    "record_function_with_scope_inputs_outputs",
    "record_outputs",
    "record_torchscript_function",
    "record_user_scope",
    "record_with_scope_debug_handle_and_inputs",
    "reenable_callback",
    "remove_callback",
    "set_record_function_seed_for_testing",
    "set_record_function_tls",
}
"""Names that version 0.1 had here. They are in ``otel_recfn.observing``."""


def __getattr__(name: str) -> Any:
    if name == "_native":  # not imported yet
        from otel_recfn.support.native_part import native_part

        return native_part()
    if name in _MOVED:
        return _moved(name)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _value(name)
    return value


def _moved(name: str) -> Any:
    """The value of a name that has moved to ``otel_recfn.observing``.

    It isn't stored here, so that each line that uses the old name gets a warning.
    """
    import warnings

    from otel_recfn import observing

    message = (
        f"otel_recfn.{name} is otel_recfn.observing.{name}; the old name goes in the next release"
    )
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(observing, name)


def _value(name: str) -> Any:
    """The value of a public name."""
    from importlib import import_module

    if name in ("batch", "profile", "record_function", "step"):
        from otel_recfn.errors import RecorderUnavailable
        from otel_recfn.support.native_part import native_part, placeholder

        try:
            native_part()
        except RecorderUnavailable:
            return (
                placeholder(name)
                if name == "profile"
                else getattr(import_module("otel_recfn.recording.signatures"), name)
            )
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
