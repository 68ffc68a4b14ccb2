"""``async with record_function(...)``: a range that belongs to a task, not to a place on its thread's stack.

Tasks take turns on a thread, so the thread's stack of open ranges says nothing about what such a range encloses. What says it
is the OpenTelemetry context, which each task has of its own: entering attaches the range's event id to it, and the recorder's
context reader finds it there when something begins in that task, in a child task, or in a thread that the context went to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from opentelemetry import context as otel_context
from opentelemetry.context.context import Context

from otel_recfn.model.error_text import error_text
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope

ENCLOSING_KEY = otel_context.create_key("recfn-enclosing")
"""Its value in a context is the event id of the innermost ``async with record_function``."""

USER_SCOPE, SOURCE, ASYNC = int(RecordScope.USER_SCOPE), int(EventSource.RECORD_FUNCTION), int(EventFlag.ASYNC)


class Entered(NamedTuple):
    """One ``async with`` that is open."""

    handle: RangeHandle
    token: Token[Context] | None
    """None where it was not recorded."""


class RangeHandle(Protocol):
    """A range that is open (see ``recording/protocol.py``)."""

    @property
    def event_id(self) -> int:
        """0 where it is not recorded."""

    def end(self, error: str = "") -> None:
        """Close it."""


class Recorder(Protocol):
    """What is needed of a recorder (``recording/protocol.py`` says what these do)."""

    def begin(self, name: str, scope: int, source: int, module: str = "", flags: int = 0) -> int:
        """Open a range in this thread."""

    def end(self, event_id: int, error: str = "") -> None:
        """Close it."""

    @property
    def range_observer(self) -> Callable[[str, str | None, int], RangeHandle] | None:
        """Opens ranges in the recorder's place."""

    def context_changed(self) -> None:
        """This thread attached or detached a context."""


class RecordFunction(Protocol):
    """What is needed of a ``record_function`` object, Python's or C's."""

    @property
    def name(self) -> str:
        """The name of its ranges."""

    @property
    def args(self) -> str | None:
        """As it was made with."""

    @property
    def _recorder(self) -> Recorder:
        """What records its ranges."""

    _entered: Any
    """A list of Entered, private to this file; None at first."""


R = TypeVar("R", bound=RecordFunction)


def enclosing_event_id(context: Context | None = None) -> int:
    """The innermost ``async with record_function`` of a context (the current one if None); 0 where there is none."""
    value = otel_context.get_value(ENCLOSING_KEY, context)
    return value if isinstance(value, int) else 0


class RecordedRange:
    """A range that the recorder alone sees."""

    __slots__ = ("_recorder", "event_id")

    def __init__(self, recorder: Recorder, event_id: int) -> None:
        self._recorder, self.event_id = recorder, event_id

    def end(self, error: str = "") -> None:
        """Close it."""
        self._recorder.end(self.event_id, error)


class NotRecorded:
    """A range that nobody sees."""

    __slots__ = ()
    event_id = 0

    def end(self, error: str = "") -> None:
        """Nothing to close."""


NOT_RECORDED = NotRecorded()


def open_range(range_: RecordFunction, flags: int = 0) -> RangeHandle:
    """Begin a range, through the recorder's range observer where one is set. ``flags``: EventFlag bits."""
    recorder = range_._recorder
    observer = recorder.range_observer
    if observer is not None:
        return observer(range_.name, range_.args, flags)
    event_id = recorder.begin(range_.name, USER_SCOPE, SOURCE, "", flags)
    return RecordedRange(recorder, event_id) if event_id else NOT_RECORDED


async def aenter(range_: R) -> R:
    """Begin a range and make it the enclosing one of this task."""
    handle = open_range(range_, ASYNC)
    entered = Entered(handle, attach_enclosing(range_._recorder, handle.event_id) if handle.event_id else None)
    if range_._entered is None:
        range_._entered = []
    range_._entered.append(entered)
    return range_


async def aexit(
    range_: RecordFunction, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
) -> None:
    """End the range that this task entered."""
    entered = _take_entered(range_._entered or [])
    if entered is None:
        return
    handle, token = entered
    if token is not None and enclosing_event_id() == handle.event_id:  # else left in another task's context: not ours to change
        detach_enclosing(range_._recorder, token)
    handle.end(error_text(error) if handle.event_id and error is not None else "")


def attach_enclosing(recorder: Recorder, event_id: int) -> Token[Context]:
    """From here on, what begins in this task lies in that range."""
    token = otel_context.attach(otel_context.set_value(ENCLOSING_KEY, event_id))
    recorder.context_changed()
    return token


def detach_enclosing(recorder: Recorder, token: Token[Context]) -> None:
    """Take back what ``attach_enclosing`` did."""
    otel_context.detach(token)
    recorder.context_changed()


def _take_entered(entered: list[Entered]) -> Entered | None:
    """One object may be entered by many tasks at once; the context says which of its ranges this task is in."""
    here = enclosing_event_id()
    for index in range(len(entered) - 1, -1, -1):
        if entered[index].handle.event_id == here:
            return entered.pop(index)
    return entered.pop() if entered else None
