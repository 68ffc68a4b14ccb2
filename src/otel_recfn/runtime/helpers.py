"""Begins a range in one line, as PyTorch's macros do. Each function returns the range, which has begun; ``with`` ends it.

    with record_user_scope("load batch"):
        ...
    with record_function_with_inputs("my::matmul", (a, b), sequence_nr=7) as range_:
        record_outputs(range_, [matmul(a, b)])

Inputs are passed on only where somebody needs them. Where nobody observes, the range is not active.
``fn`` is a name or an operator's schema; see ``RecordFunction.before``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime.record_function import RecordFunction


def record_function_with_scope(
    scope: RecordScope, fn: Any, inputs: Sequence[Any] = (), sequence_nr: int = -1
) -> RecordFunction:
    """A range of any scope (source: RECORD_FUNCTION_WITH_SCOPE)."""
    range_ = RecordFunction(scope)
    _begin(range_, fn, inputs, sequence_nr)
    return range_


def record_function_with_scope_inputs_outputs(
    scope: RecordScope, fn: Any, inputs: Sequence[Any], outputs: Sequence[Any], sequence_nr: int = -1
) -> RecordFunction:
    """The same, with outputs that are known already (source: RECORD_FUNCTION_WITH_SCOPE_INPUTS_OUTPUTS)."""
    range_ = record_function_with_scope(scope, fn, inputs, sequence_nr)
    record_outputs(range_, outputs)
    return range_


def record_function_with_inputs(fn: Any, inputs: Sequence[Any] = (), sequence_nr: int = -1) -> RecordFunction:
    """A range of scope FUNCTION (source: RECORD_FUNCTION)."""
    return record_function_with_scope(RecordScope.FUNCTION, fn, inputs, sequence_nr)


def record_function_with_inputs_outputs(
    fn: Any, inputs: Sequence[Any], outputs: Sequence[Any], sequence_nr: int = -1
) -> RecordFunction:
    """The same, with outputs (source: RECORD_FUNCTION_WITH_INPUTS_OUTPUTS)."""
    return record_function_with_scope_inputs_outputs(RecordScope.FUNCTION, fn, inputs, outputs, sequence_nr)


def record_torchscript_function(fn: Any, inputs: Sequence[Any] = ()) -> RecordFunction:
    """A range of scope TORCHSCRIPT_FUNCTION (source: RECORD_TORCHSCRIPT_FUNCTION)."""
    return record_function_with_scope(RecordScope.TORCHSCRIPT_FUNCTION, fn, inputs)


def record_user_scope(fn: Any, inputs: Sequence[Any] = ()) -> RecordFunction:
    """A range of scope USER_SCOPE (source: RECORD_USER_SCOPE, RECORD_USER_SCOPE_WITH_INPUTS)."""
    return record_function_with_scope(RecordScope.USER_SCOPE, fn, inputs)


def record_with_scope_debug_handle_and_inputs(
    scope: RecordScope, fn: Any, debug_handle: int, inputs: Sequence[Any] = (), sequence_nr: int = -1
) -> RecordFunction:
    """A range with a debug handle (source: RECORD_WITH_SCOPE_DEBUG_HANDLE_AND_INPUTS)."""
    range_ = RecordFunction(scope)
    range_.set_debug_handle(debug_handle)
    _begin(range_, fn, inputs, sequence_nr)
    return range_


def record_edge_scope_with_debug_handle_and_inputs(fn: Any, debug_handle: int, inputs: Sequence[Any] = ()) -> RecordFunction:
    """A range of scope LITE_INTERPRETER (source: RECORD_EDGE_SCOPE_WITH_DEBUG_HANDLE_AND_INPUTS)."""
    return record_with_scope_debug_handle_and_inputs(RecordScope.LITE_INTERPRETER, fn, debug_handle, inputs)


def record_outputs(range_: RecordFunction, outputs: Sequence[Any]) -> None:
    """Give a range its outputs, where somebody needs them (source: RECORD_OUTPUTS)."""
    if range_.needs_outputs():
        range_.set_outputs(list(outputs))


def _begin(range_: RecordFunction, fn: Any, inputs: Sequence[Any], sequence_nr: int) -> None:
    range_.before(fn, inputs if range_.needs_inputs() else (), sequence_nr=sequence_nr)
