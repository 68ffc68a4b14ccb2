"""OpenTelemetry instrumentation for PyTorch's RecordFunction.

Names are resolved on first use, so that ``import otel_recfn`` loads neither numpy nor the exporters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_recfn.version import __version__

if TYPE_CHECKING:
    from types import ModuleType

    from otel_recfn.instrumentor import OtelRecordFunctionInstrumentor
    from otel_recfn.model.events import NUM_SCOPES, RecordScope
    from otel_recfn.model.python_calls import PythonCalls
    from otel_recfn.observing import *  # noqa: F403 - the names that are in its list and in ours
    from otel_recfn.profiling import profile
    from otel_recfn.sinks.in_memory import InMemorySink
    from otel_recfn.user_ranges import step

    record_function: type[Any]

_HOMES = {
    "InMemorySink": "otel_recfn.sinks.in_memory",
    "NUM_SCOPES": "otel_recfn.model.events",
    "OtelRecordFunctionInstrumentor": "otel_recfn.instrumentor",
    "PythonCalls": "otel_recfn.model.python_calls",
    "RecordScope": "otel_recfn.model.events",
    "profile": "otel_recfn.profiling",
    "record_function": "otel_recfn.user_ranges",
    "step": "otel_recfn.user_ranges",
}
"""The module of each name; names that are not here are in ``otel_recfn.observing``."""

__all__ = [
    "INVALID_CALLBACK_HANDLE",
    "NUM_SCOPES",
    "DebugInfoGuard",
    "DebugInfoKind",
    "DisableRecordFunctionGuard",
    "InMemorySink",
    "OtelRecordFunctionInstrumentor",
    "PropagatingExecutor",
    "PropagatingThread",
    "PythonCalls",
    "RecordFunction",
    "RecordFunctionCallback",
    "RecordFunctionGuard",
    "RecordFunctionTLS",
    "RecordScope",
    "StepCallbacks",
    "ThreadLocalState",
    "ThreadLocalStateGuard",
    "__version__",
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
    "profile",
    "propagate",
    "record_edge_scope_with_debug_handle_and_inputs",
    "record_function",
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
    "step",
]


def __getattr__(name: str) -> Any:
    if name == "_native":  # not imported yet
        from otel_recfn.support.native_part import native_part

        return native_part()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_home(name), name)
    return value


def _home(name: str) -> ModuleType:
    """The module that has the name."""
    from importlib import import_module

    if name in ("profile", "record_function", "step"):
        from otel_recfn.errors import RecorderUnavailable
        from otel_recfn.support.native_part import native_part

        try:
            native_part()
        except RecorderUnavailable:
            return import_module("otel_recfn.recording.signatures")
    return import_module(_HOMES.get(name, "otel_recfn.observing"))


def __dir__() -> list[str]:
    return sorted(__all__)
