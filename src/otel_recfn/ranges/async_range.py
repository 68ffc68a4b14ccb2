"""A range of ``record_function`` that is open, and ``async with record_function(...)``.

The latter belongs to a task, not to a place on its thread's stack. Tasks take turns on a thread, so such a range may end while
ranges that began after it are still open: it is asynchronous. ``enter`` and ``leave`` tell the recorder
(``recording/recorder.py``) when the task is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from otel_recfn import _native
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.support.texts import failure

USER_SCOPE, SOURCE, ASYNC = int(RecordScope.USER_SCOPE), int(EventSource.RECORD_FUNCTION), int(EventFlag.ASYNC)


class RangeHandle(Protocol):
    """A range that is open."""

    @property
    def event_id(self) -> int:
        """The event id of its row; 0 where it is not recorded."""

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Close it; both as in ``Recorder.end``."""


RangeObserver: TypeAlias = Callable[[str, "str | None", int, str], RangeHandle]
"""Opens a range of ``record_function``: its name, its ``args``, EventFlag bits known now, what it decorates."""


class UserRange(Protocol):
    """A ``record_function`` object."""

    @property
    def name(self) -> str:
        """The name of its ranges."""

    @property
    def args(self) -> str | None:
        """The ``args`` that it was made with."""

    @property
    def _code(self) -> str | None:
        """What it decorates, as ``support/texts.py`` tells it; None where nothing."""

    _entered: Any
    """A list of Entered, private to this file; None at first."""


class Entered(NamedTuple):
    """One ``async with`` that is open."""

    handle: RangeHandle
    entered: Any | None
    """What ``enter`` returned; None where the range was not recorded."""


R = TypeVar("R", bound=UserRange)


class RecordedRange:
    """A range that the recorder alone sees."""

    __slots__ = ("event_id",)

    def __init__(self, event_id: int) -> None:
        self.event_id = event_id

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Close it."""
        _native.end(self.event_id, error, stacktrace=stacktrace)


class NotRecorded:
    """A range that nobody sees."""

    __slots__ = ()
    event_id = 0

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Nothing to close."""


NOT_RECORDED = NotRecorded()


def open_range(range_: UserRange, flags: int = 0) -> RangeHandle:
    """Begin a range, through the recorder's range observer where one is set. ``flags``: EventFlag bits."""
    observer = _native.range_observer()
    if observer is not None:
        return observer(range_.name, range_.args, flags, range_._code or "")
    return record_range(range_.name, flags, range_._code or "")


def record_range(name: str, flags: int, code: str) -> RangeHandle:
    """Begin a range for the recorder alone."""
    event_id = _native.begin(name, USER_SCOPE, SOURCE, "", flags, code=code)
    return RecordedRange(event_id) if event_id else NOT_RECORDED


async def aenter(range_: R) -> R:
    """Begin a range and make it the innermost one of this task."""
    handle = open_range(range_, ASYNC)
    entered = Entered(handle, _native.enter(handle.event_id) if handle.event_id else None)
    if range_._entered is None:
        range_._entered = []
    range_._entered.append(entered)
    return range_


async def aexit(
    range_: UserRange, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
) -> None:
    """End the range that this task entered."""
    taken = _take_entered(range_._entered or [])
    if taken is None:
        return
    handle, entered = taken
    if entered is not None:
        _native.leave(entered)
    handle.end(*failure(error if handle.event_id else None))


def _take_entered(entered: list[Entered]) -> Entered | None:
    """Of an object that many tasks may have entered: the newest range that this task is in, else the newest of all."""
    for index in range(len(entered) - 1, -1, -1):
        in_task = entered[index].entered
        if in_task is not None and _native.is_in(in_task):
            return entered.pop(index)
    return entered.pop() if entered else None
