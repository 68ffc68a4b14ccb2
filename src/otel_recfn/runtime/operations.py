"""Ranges begun and ended by calls, as PyTorch's operators under its ``record_function`` do (source: record_function_ops.cpp).

legacy   handle = record_function_enter(name, args)       a number that stands for the range until it ends, and holds it
new      record = record_function_enter_new(name, args)   an object that is the range
both     record_function_exit(handle_or_record)
         call_end_callbacks_on_future(handle_or_record, future)     see futures.py
"""

from __future__ import annotations

import weakref

from otel_recfn.model.errors import RecfnError
from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime.record_function import RecordFunction
from otel_recfn.support.fork_safe_lock import ForkSafeLock

_lock = ForkSafeLock()
_last_number = 0


class UnknownHandleError(RecfnError, ValueError):
    """A number that no ``record_function_enter`` has returned."""


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
