"""The program's own spans that ranges were recorded below: they say when they end, how long they took, and whether they failed.

program's thread   saw(span)  ──►  remembered, the newest  ──►  find ─ forget   sink's thread
"""

from __future__ import annotations

import contextlib
import time
from itertools import islice
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags, TraceState

from otel_recfn.support.spawned import span_of_parent

MAX_REMEMBERED = 1 << 12
LAST_NS = (1 << 63) - 1


class SpanEnd(NamedTuple):
    """How a span of the program ended. Times in Unix nanoseconds; None where the program gave something else."""

    name: str
    start_ns: int | None
    end_ns: int | None
    failed: bool


class ProgramSpans:
    """By trace id and span id. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], ReadableSpan] = {}
        self._since_ns = 0
        """What began before is another process's, or was given an earlier start by the program."""
        self._inherited: dict[tuple[int, int], None] = {}
        """The newest of such spans that ranges began below."""
        self._forked_in: SpanContext | None = None
        """The first of these."""

    @property
    def made_in(self) -> SpanContext | None:
        """The span of its parent that this process was forked or started in."""
        return self._forked_in or _started_in()

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """A range began below this span. One whose end can't be seen here, as a remote one's, is not remembered."""
        if not isinstance(span, ReadableSpan) or span.end_time is not None:
            return
        if (nanoseconds(span.start_time) or 0) < self._since_ns:
            self._note_inherited(trace_id, span_id, span)
            return
        self._spans[trace_id, span_id] = span
        _bound(self._spans)

    def was_inherited(self, trace_id: int, span_id: int) -> bool:
        """Whether this process was forked or started inside the span."""
        around = span_of_parent()
        is_that_one = around is not None and (around.trace_id, around.span_id) == (trace_id, span_id)
        return is_that_one or (trace_id, span_id) in self._inherited

    def find(self, trace_id: int, span_id: int) -> ReadableSpan | None:
        """The span; None where it isn't remembered."""
        return self._spans.get((trace_id, span_id))

    def end_of(self, trace_id: int, span_id: int) -> SpanEnd | None:
        """How the span ended; None where it hasn't, or isn't remembered."""
        span = self._spans.get((trace_id, span_id))
        end_ns = span.end_time if span is not None else None
        if span is None or end_ns is None:
            return None
        name, failed = span.name, span.status.status_code is StatusCode.ERROR
        return SpanEnd(name if isinstance(name, str) else "", nanoseconds(span.start_time), nanoseconds(end_ns), failed)

    def forget(self, trace_id: int, span_id: int) -> None:
        """Nobody asks for it any more."""
        self._spans.pop((trace_id, span_id), None)

    def start_empty(self) -> None:
        """Called in a forked child: the copies of its parent's spans that it has will never end."""
        self._spans.clear()
        self._inherited, self._forked_in = {}, None
        self._since_ns = time.time_ns()

    def _note_inherited(self, trace_id: int, span_id: int, span: ReadableSpan) -> None:
        if (trace_id, span_id) in self._inherited:
            return
        if self._forked_in is None:
            self._forked_in = span.get_span_context()
        self._inherited[trace_id, span_id] = None
        _bound(self._inherited)


def _started_in() -> SpanContext | None:
    around = span_of_parent()
    if around is None:
        return None
    state = TraceState.from_header([around.trace_state]) if around.trace_state else None
    return SpanContext(around.trace_id, around.span_id, False, TraceFlags(around.flags), state)


def nanoseconds(time: Any) -> int | None:
    """A span's time as OTLP takes it; None for anything else: the SDK keeps whatever the program gives."""
    return int(time) if isinstance(time, (int, float)) and 0 <= time <= LAST_NS else None


def _bound(remembered: dict[tuple[int, int], Any]) -> None:
    """Forget the oldest where there are many."""
    if len(remembered) > MAX_REMEMBERED:
        with contextlib.suppress(RuntimeError):  # another thread adds one meanwhile, and sees to it
            for key in list(islice(remembered, MAX_REMEMBERED // 4)):
                remembered.pop(key, None)
