# ruff: noqa: I001 - each name is imported as itself, which hands it on
"""Observers in Python: the public names of ``callbacks/``.

A callback that is added here sees ranges of ``record_function`` and ``RecordFunction`` and, once
torch is imported, every RecordFunction of PyTorch's, in whatever thread it runs: operators,
autograd nodes, TorchScript functions. PyTorch decides in C++ what a callback doesn't select or
sample, and doesn't call it then.

What a callback gets from PyTorch can be read only while the callback runs, inputs only in its
start: keep values in the observer context. Tensors that the program has are the program's own
objects; one that only PyTorch has yet comes as a detached tensor that shares its data. dtypes,
layouts and memory formats are the numbers that PyTorch's operators get.
"""

from otel_recfn import errors
from otel_recfn.callbacks.callback import (
    INVALID_CALLBACK_HANDLE as INVALID_CALLBACK_HANDLE,
    RecordFunctionCallback as RecordFunctionCallback,
    StepCallbacks as StepCallbacks,
)
from otel_recfn.model.events import NUM_SCOPES as NUM_SCOPES, DebugInfoKind as DebugInfoKind
from otel_recfn.support import native_part

_NEED_THE_NATIVE_PART = [
    "DebugInfoGuard",
    "DisableRecordFunctionGuard",
    "PropagatingExecutor",
    "PropagatingThread",
    "RecordFunction",
    "RecordFunctionGuard",
    "RecordFunctionTLS",
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

try:
    from otel_recfn import user_ranges  # noqa: F401 - it has ranges told to PyTorch's own observers
    from otel_recfn.callbacks.operations import (
        call_end_callbacks_on_future as call_end_callbacks_on_future,
        record_edge_scope_with_debug_handle_and_inputs as record_edge_scope_with_debug_handle_and_inputs,  # noqa: E501
        record_function_enter as record_function_enter,
        record_function_enter_new as record_function_enter_new,
        record_function_exit as record_function_exit,
        record_function_with_inputs as record_function_with_inputs,
        record_function_with_inputs_outputs as record_function_with_inputs_outputs,
        record_function_with_scope as record_function_with_scope,
        record_function_with_scope_inputs_outputs as record_function_with_scope_inputs_outputs,
        record_outputs as record_outputs,
        record_torchscript_function as record_torchscript_function,
        record_user_scope as record_user_scope,
        record_with_scope_debug_handle_and_inputs as record_with_scope_debug_handle_and_inputs,
    )
    from otel_recfn.callbacks.record_function import RecordFunction as RecordFunction, TracedRange
    from otel_recfn.callbacks.registry import (
        add_global_callback as add_global_callback,
        add_thread_local_callback as add_thread_local_callback,
        clear_callbacks as clear_callbacks,
        clear_global_callbacks as clear_global_callbacks,
        clear_thread_local_callbacks as clear_thread_local_callbacks,
        disable_callback as disable_callback,
        get_step_callbacks as get_step_callbacks,
        get_step_callbacks_unless_empty as get_step_callbacks_unless_empty,
        has_callbacks as has_callbacks,
        has_global_callbacks as has_global_callbacks,
        has_thread_local_callbacks as has_thread_local_callbacks,
        reenable_callback as reenable_callback,
        remove_callback as remove_callback,
    )
    from otel_recfn.callbacks.state import (
        DisableRecordFunctionGuard as DisableRecordFunctionGuard,
        PropagatingExecutor as PropagatingExecutor,
        PropagatingThread as PropagatingThread,
        RecordFunctionGuard as RecordFunctionGuard,
        RecordFunctionTLS as RecordFunctionTLS,
        ThreadLocalState as ThreadLocalState,
        ThreadLocalStateGuard as ThreadLocalStateGuard,
        enable_record_function as enable_record_function,
        get_record_function_tls as get_record_function_tls,
        propagate as propagate,
        set_record_function_seed_for_testing as set_record_function_seed_for_testing,
        set_record_function_tls as set_record_function_tls,
    )
    from otel_recfn.callbacks.thread_locals import (
        DebugInfoGuard as DebugInfoGuard,
        debug_info_get as debug_info_get,
        debug_info_peek as debug_info_peek,
        debug_info_pop as debug_info_pop,
        debug_info_push as debug_info_push,
        is_record_function_enabled as is_record_function_enabled,
    )
    from otel_recfn.pytorch.compiling import trace_instead
except errors.RecorderUnavailable:  # the other names can be imported, and raise when they are used
    globals()["__getattr__"] = native_part.placeholders(_NEED_THE_NATIVE_PART)
else:
    trace_instead(RecordFunction, TracedRange)
    trace_instead(record_function_enter, record_function_enter_new)
