"""Observers in Python: the public names of ``callbacks/``.

A callback that is added here sees ranges of ``record_function`` and ``RecordFunction`` and, once torch is imported, every
RecordFunction of PyTorch's, in whatever thread it runs: operators, autograd nodes, TorchScript functions. PyTorch decides in
C++ what a callback doesn't select or sample; docs/costs.md says what a call costs.

What a callback gets from PyTorch can be read only while the callback runs, inputs only in its start: keep values in the
observer context. Tensors that the program has are the program's own objects; one that only PyTorch has yet comes as a detached
tensor that shares its data. dtypes, layouts and memory formats are the numbers that PyTorch's operators get.
"""

from otel_recfn.callbacks import torchs_observers
from otel_recfn.callbacks.callback import RecordFunctionCallback, StepCallbacks
from otel_recfn.callbacks.operations import (
    call_end_callbacks_on_future,
    record_edge_scope_with_debug_handle_and_inputs,
    record_function_enter,
    record_function_enter_new,
    record_function_exit,
    record_function_with_inputs,
    record_function_with_inputs_outputs,
    record_function_with_scope,
    record_function_with_scope_inputs_outputs,
    record_outputs,
    record_torchscript_function,
    record_user_scope,
    record_with_scope_debug_handle_and_inputs,
)
from otel_recfn.callbacks.record_function import RecordFunction, TracedRange
from otel_recfn.callbacks.registry import (
    INVALID_CALLBACK_HANDLE,
    add_global_callback,
    add_thread_local_callback,
    clear_callbacks,
    clear_global_callbacks,
    clear_thread_local_callbacks,
    disable_callback,
    get_step_callbacks,
    get_step_callbacks_unless_empty,
    has_callbacks,
    has_global_callbacks,
    has_thread_local_callbacks,
    reenable_callback,
    remove_callback,
)
from otel_recfn.callbacks.state import (
    DisableRecordFunctionGuard,
    PropagatingExecutor,
    PropagatingThread,
    RecordFunctionGuard,
    RecordFunctionTLS,
    ThreadLocalState,
    ThreadLocalStateGuard,
    enable_record_function,
    get_record_function_tls,
    propagate,
    set_record_function_seed_for_testing,
    set_record_function_tls,
)
from otel_recfn.callbacks.thread_locals import (
    DebugInfoGuard,
    DebugInfoKind,
    debug_info_get,
    debug_info_peek,
    debug_info_pop,
    debug_info_push,
    is_record_function_enabled,
)
from otel_recfn.pytorch.compiling import trace_instead

__all__ = [
    "INVALID_CALLBACK_HANDLE",
    "DebugInfoGuard",
    "DebugInfoKind",
    "DisableRecordFunctionGuard",
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
]

torchs_observers.watch()
trace_instead(RecordFunction, TracedRange)
trace_instead(record_function_enter, record_function_enter_new)
