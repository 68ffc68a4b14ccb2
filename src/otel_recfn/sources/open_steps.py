"""A step that the program marks, while it is open: its span and its range.

    enter   span of the SDK ──► current ──► range of the recorder      leave   not current ──► end of the range ──► of the span

The span is one of the program's like any other: the provider's sampler is asked and its processors see it start, the program
can set attributes on it, and what runs in the step lies below it. The range is what local files and profiles have. Its context
says ContextFlag.STEP, by which whoever makes spans knows that it has one already.

The span is shown as the current one, as ranges are (``range_spans.py``), and not attached: a generator that is left early is
closed by whoever drops it, in a task, thread or context that can't detach what another one has attached. So each task knows its
innermost step, and what was attached as that began. As long as that is still attached, the step's span is current in its place;
a step that has ended, wherever that was, is passed over in every task.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.recorder import recorder
from otel_recfn.support.seen_spans import remember_current
from otel_recfn.support.signal_handlers import raised_by_signal_handler
from otel_recfn.support.texts import failure

if TYPE_CHECKING:
    from otel_recfn.sources.range_spans import SpansOfRanges

log = logging.getLogger("otel_recfn")

USER_SCOPE, SOURCE, ASYNC = int(RecordScope.USER_SCOPE), int(EventSource.STEP), int(EventFlag.ASYNC)
MOST_NAMES = 1024
"""So many names are counted; beyond it the count of the oldest is forgotten."""


SUPPRESSION_KEYS = tuple(
    key for key in (getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", None), "suppress_instrumentation") if key
)
"""Keys of a context that switch instrumentation off: those that ``is_instrumentation_enabled`` of OpenTelemetry asks for."""


class ShownSteps:
    """Where steps become spans; None for nowhere."""

    spans: SpansOfRanges | None = None
    attached: Callable[[], Context] = staticmethod(otel_context.get_current)
    """What is attached in the calling task, without what is shown in its place."""


shown_steps = ShownSteps()
"""Of the process: the capture that makes spans says it."""
_numbers: dict[str, itertools.count[int]] = {}


class OpenStep:
    """A step that is open.

    Args:
        span: its own; None where nothing takes spans.
        outer: the step that it lies in.
    """

    __slots__ = ("attached", "begins", "ended", "entered", "event_id", "outer", "seen", "span")

    def __init__(self, span: trace.Span | None, outer: OpenStep | None) -> None:
        self.span, self.outer = span, outer
        self.begins = self.ended = False
        """``begins``: its range is about to begin."""
        self.attached: Context | None = None
        """What was attached when it was entered, in whose place ``seen`` is current; None where it has no span."""
        self.seen: Any = None
        self.event_id = 0
        self.entered: Any = None
        """What ``Recorder.enter`` returned."""


_innermost: ContextVar[OpenStep | None] = ContextVar("otel_recfn_step", default=None)
"""What the calling task has entered last; it may have ended."""


def innermost_step() -> OpenStep | None:
    """The innermost step that the calling task is in."""
    opened = _innermost.get()
    while opened is not None and opened.ended:
        opened = opened.outer
    return opened


def seen_in_step(attached: Context) -> Context:
    """What is current in the calling task, where ``attached`` is attached: with the span of a step that was entered since."""
    opened = _innermost.get()
    while opened is not None:
        if opened.attached is attached and not opened.ended:
            seen: Context = opened.seen
            return seen
        opened = opened.outer
    return attached


def begins_now(span: object) -> bool:
    """Whether the range that begins in the calling task now is the one of the step whose span is ``span``."""
    innermost = _innermost.get()
    return innermost is not None and innermost.begins and innermost.span is span


def next_number(name: str) -> int:
    """The number of the next step of that name, from 0."""
    counted = _numbers.get(name)
    if counted is None:
        for oldest in list(_numbers)[: max(0, len(_numbers) - MOST_NAMES + 1)]:
            _numbers.pop(oldest, None)
        counted = _numbers.setdefault(name, itertools.count())
    return next(counted)


def open_step(name: str, number: int, flags: int, code: str) -> OpenStep | None:
    """Begin a step in this task; None where nobody would see it. ``flags``, ``code``: as of ``Recorder.begin``."""
    spans = shown_steps.spans
    if spans is None and not recorder.recording:
        return None
    around = otel_context.get_current()
    span = spans.start_step(name, number, code) if spans is not None and not is_suppressed(around) else None
    opened = OpenStep(span, innermost_step())
    _enter(opened, around)
    _begin(opened, name, number, flags, code)
    return opened


def close_step(opened: OpenStep, error: BaseException | None) -> None:
    """End a step, in whatever task or thread."""
    opened.ended = True
    if _innermost.get() is opened:
        _innermost.set(innermost_step())
    if opened.entered is not None:
        recorder.leave(opened.entered)
    text, stacktrace = failure(error)
    recorder.end(opened.event_id, text, stacktrace=stacktrace)
    if opened.span is not None:
        recorder.span_detached(opened)
        _end_span(opened.span, error, text)


def _enter(opened: OpenStep, around: Context) -> None:
    if opened.span is not None:
        opened.seen = trace.set_span_in_context(opened.span, around)
        opened.attached = shown_steps.attached()
        recorder.span_attached(opened.span, opened)
        remember_current(opened.span)
    _innermost.set(opened)


def _begin(opened: OpenStep, name: str, number: int, flags: int, code: str) -> None:
    opened.begins = opened.span is not None
    try:
        opened.event_id = recorder.begin(name, USER_SCOPE, SOURCE, flags=flags, step_number=number, code=code)
    finally:
        opened.begins = False
    if flags & ASYNC and opened.event_id:
        opened.entered = recorder.enter(opened.event_id)
    recorder.context_attached(object())  # what it read now holds for no other begin: another thread may end the step
    if opened.span is not None and opened.event_id:
        opened.span.set_attribute("recfn.event_id", opened.event_id)


def _end_span(span: trace.Span, error: BaseException | None, text: str) -> None:
    """``text``: of the failure; empty where there is none."""
    try:
        if text:
            if isinstance(error, Exception):
                span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, text)
        span.end()
    except Exception as raised:
        if raised_by_signal_handler(raised):
            raise
        _tell_once()


@functools.cache
def _tell_once() -> None:
    log.exception("a span processor raised as a step's span ended; this is logged once")


def is_suppressed(context: Context) -> bool:
    """Whether the context switches instrumentation off."""
    return any(context.get(key) for key in SUPPRESSION_KEYS)
