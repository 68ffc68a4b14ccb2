"""A step that the program marks, while it is open: its span and its range.

    enter   span of the SDK, attached ──► range of the recorder      leave   end of the range ──► detach ──► end of the span

The span is one of the program's like any other: the provider's sampler is asked and its processors see it start, the program
can set attributes on it, and what runs in the step lies below it. The range is what local files and profiles have. Its context
says ContextFlag.STEP, by which whoever makes spans knows that it has one already.
"""

from __future__ import annotations

import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.protocol import Recorder
from otel_recfn.sources.suppression import is_suppressed
from otel_recfn.support.interrupts import raised_by_signal_handler
from otel_recfn.support.stack_trace import failure

if TYPE_CHECKING:
    from otel_recfn.sources.range_spans import SpansOfRanges

log = logging.getLogger("otel_recfn")

USER_SCOPE, SOURCE, ASYNC = int(RecordScope.USER_SCOPE), int(EventSource.STEP), int(EventFlag.ASYNC)
MOST_NAMES = 1024
"""So many names are counted; beyond it the count of the oldest is forgotten."""
STEP_KEY = otel_context.create_key("otel-recfn-step")
"""In a context: the innermost step that is open, an OpenStep."""


class ShownSteps:
    """Where steps become spans; None for nowhere."""

    spans: SpansOfRanges | None = None


shown_steps = ShownSteps()
"""Of the process: the capture that makes spans says it."""
_numbers: dict[str, itertools.count[int]] = {}


class OpenStep:
    """A step that is open.

    Args:
        span: its own; None where nothing takes spans.
        outer: the step that it lies in.
    """

    __slots__ = ("begins", "entered", "event_id", "outer", "span", "token")

    def __init__(self, span: trace.Span | None, outer: OpenStep | None) -> None:
        self.span, self.outer = span, outer
        self.begins = False
        """Whether its range is about to begin."""
        self.token: Any = None
        self.event_id = 0
        self.entered: Any = None
        """What ``Recorder.enter`` returned."""


def begins_in(context: Context, span: object) -> bool:
    """Whether the range that begins in this context now is the one of the step whose span is ``span``."""
    innermost = context.get(STEP_KEY)
    return isinstance(innermost, OpenStep) and innermost.begins and innermost.span is span


def next_number(name: str) -> int:
    """The number of the next step of that name, from 0."""
    counted = _numbers.get(name)
    if counted is None:
        for oldest in list(_numbers)[: max(0, len(_numbers) - MOST_NAMES + 1)]:
            _numbers.pop(oldest, None)
        counted = _numbers.setdefault(name, itertools.count())
    return next(counted)


def open_step(recorder: Recorder, name: str, number: int, flags: int, code: str) -> OpenStep | None:
    """Begin a step in this task; None where nobody would see it. ``flags``, ``code``: as of ``Recorder.begin``."""
    spans = shown_steps.spans
    if spans is None and not recorder.recording:
        return None
    around = otel_context.get_current()
    outer = around.get(STEP_KEY)
    span = spans.start_step(name, number, code) if spans is not None and not is_suppressed(around) else None
    opened = OpenStep(span, outer if isinstance(outer, OpenStep) else None)
    try:
        opened.token = otel_context.attach(_context_of(opened, around))
        _begin(recorder, opened, name, number, flags, code)
    except BaseException:  # a signal handler's: nobody else could end the step
        close_step(recorder, opened, None)
        raise
    return opened


def close_step(recorder: Recorder, opened: OpenStep, error: BaseException | None) -> None:
    """End a step."""
    if opened.entered is not None:
        recorder.leave(opened.entered)
    text, stacktrace = failure(error)
    recorder.end(opened.event_id, text, stacktrace=stacktrace)
    if opened.token is not None:
        otel_context.detach(opened.token)
    if opened.span is not None:
        _end_span(opened.span, error, text)


def _context_of(opened: OpenStep, around: Context) -> Context:
    if opened.span is not None:
        around = trace.set_span_in_context(opened.span, around)
    return otel_context.set_value(STEP_KEY, opened, around)


def _begin(recorder: Recorder, opened: OpenStep, name: str, number: int, flags: int, code: str) -> None:
    opened.begins = opened.span is not None
    try:
        opened.event_id = recorder.begin(name, USER_SCOPE, SOURCE, flags=flags, step_number=number, code=code)
    finally:
        opened.begins = False
    if not opened.event_id:
        recorder.context_attached(object())  # what it read for this begin holds for no other one
    elif flags & ASYNC:
        opened.entered = recorder.enter(opened.event_id)
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
