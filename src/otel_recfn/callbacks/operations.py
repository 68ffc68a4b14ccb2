"""Ranges that one call begins, as PyTorch's macros do, or one call ends, as the operators under its ``record_function`` do.

    with record_user_scope("load batch"):
        ...
    with record_function_with_inputs("my::matmul", (a, b), sequence_nr=7) as range_:
        record_outputs(range_, [matmul(a, b)])

Inputs are passed on only where somebody needs them. Where nobody observes, the range is not active.
``fn`` is a name or an operator's schema; see ``RecordFunction.before``.

    legacy   handle = record_function_enter(name, args)       a number that stands for the range until it ends, and holds it
    new      record = record_function_enter_new(name, args)   an object that is the range
    both     record_function_exit(handle_or_record)
             call_end_callbacks_on_future(handle_or_record, future)     see futures.py

(sources: record_function.h, record_function_ops.cpp)
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.model.errors import UnknownHandleError
from otel_recfn.model.events import RecordScope
from otel_recfn.support.forks import ForkSafeLock


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


# --- enter and exit

_lock = ForkSafeLock()
_last_number = 0


class LegacyHandle(int):
    """The number of a range of the legacy form, which ends at the latest when nobody holds its handle any more."""

    record: RecordFunction


_open: weakref.WeakValueDictionary[int, RecordFunction] = weakref.WeakValueDictionary()


class PythonRecordFunction:
    """A range of the new form; it ends at the latest when nobody holds it any more."""

    __slots__ = ("record",)

    def __init__(self, scope: RecordScope = RecordScope.USER_SCOPE) -> None:
        self.record = RecordFunction(scope)


def record_function_enter(name: str, args: str | None = None) -> int:
    """Begin a user range; ``args`` is its only input, where inputs are needed.

    Returns:
        the handle by which to end it; the range ends with it.
    """
    handle = LegacyHandle(_next_number())
    handle.record = RecordFunction(RecordScope.USER_SCOPE)
    _open[int(handle)] = handle.record
    _enter(handle.record, name, args)
    return handle


def record_function_enter_new(name: str, args: str | None = None) -> PythonRecordFunction:
    """The same, as an object."""
    entered = PythonRecordFunction()
    _enter(entered.record, name, args)
    return entered


def record_function_exit(record: int | PythonRecordFunction) -> None:
    """End what an enter began. Nothing happens where that has ended before, by hand or because nobody held it.

    Raises:
        TypeError: it is neither a handle nor a record.
        UnknownHandleError: a number that no enter has returned.
    """
    range_ = find_range(record)
    if range_ is not None:
        range_.end()


def find_range(record: int | PythonRecordFunction) -> RecordFunction | None:
    """The range that an enter began; None where it has gone with its handle.

    Raises:
        TypeError: it is neither a handle nor a record.
        UnknownHandleError: a number that no enter has returned.
    """
    if isinstance(record, PythonRecordFunction):
        return record.record
    if isinstance(record, LegacyHandle):
        return record.record
    if not isinstance(record, int) or isinstance(record, bool):
        raise TypeError(
            f"{type(record).__name__} is no handle of a range; pass what record_function_enter() or "
            "record_function_enter_new() returned"
        )
    if not 0 < record <= _last_number:
        raise UnknownHandleError(f"no range has the handle {record}; pass what record_function_enter() returned")
    return _open.get(record)


def _next_number() -> int:
    global _last_number
    with _lock:
        _last_number += 1
        return _last_number


def _enter(record: RecordFunction, name: str, args: str | None) -> None:
    record.before(name, (args,) if args is not None and record.needs_inputs() else ())
