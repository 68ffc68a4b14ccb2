"""Ranges begun and ended by calls, as PyTorch's operators under its ``record_function`` do (source: record_function_ops.cpp).

legacy   handle = record_function_enter(name, args)       a number that stands for the range until it ends, and holds it
new      record = record_function_enter_new(name, args)   an object that is the range
both     record_function_exit(handle_or_record)
         call_end_callbacks_on_future(handle_or_record, future)     see futures.py
"""

from __future__ import annotations

import itertools
import weakref

from otel_recfn.model.errors import RecfnError
from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime.record_function import RecordFunction

_legacy_numbers = itertools.count(1)


class HandleGoneError(RecfnError):
    """The range of a legacy handle ended, or never was."""


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
    handle = LegacyHandle(next(_legacy_numbers))
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
    """End what an enter began.

    Raises:
        HandleGoneError: a legacy handle whose range ended already, by hand or because nobody held it.
    """
    take_record(record).end()


def take_record(record: int | PythonRecordFunction) -> RecordFunction:
    """The range, which is about to end.

    Raises:
        HandleGoneError: a legacy handle whose range ended already.
    """
    if isinstance(record, PythonRecordFunction):
        return record.record
    taken = _open.pop(record, None)
    if taken is None:
        raise HandleGoneError(
            f"undefined RecordFunction handle {record!r}: it was not kept open until the future completed, or was ended twice; "
            "use record_function_enter_new(), whose object keeps the range"
        )
    return taken


def _enter(record: RecordFunction, name: str, args: str | None) -> None:
    record.before(name, (args,) if args is not None and record.needs_inputs() else ())
