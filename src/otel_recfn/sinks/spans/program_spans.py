"""The program's spans that ranges began below, until the units below them are decided.

    a range begins below a span ──► note_parent_span ──┬► it began here: remembered
                                                       └► it is another process's: inherited
    the SDK ends a span         ──► ended ──► span_end: its name, times and failure
    a fork                      ──► start_empty: what the child has of the parent's never ends there

A span is forgotten when the unit below it is decided, or among very many.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags, TraceState

from otel_recfn.support.processes import ParentProcessSpan, parent_process_span
from otel_recfn.support.recent_entries import remember

MAX_REMEMBERED = 1 << 12
"""The maximum number of the program's spans that are remembered."""
LAST_NS = (1 << 63) - 1


class SpanEnd(NamedTuple):
    """The end of a span of the program's.

    Times are in Unix nanoseconds; None if the program gave something else.
    """

    name: str
    start_ns: int | None
    end_ns: int | None
    failed: bool


class ProgramSpans:
    """The program's spans, by trace id and span id. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], ReadableSpan] = {}
        self._since_ns = 0
        """The time before which spans are another process's, or were given an earlier start by
        the program.
        """
        self._inherited: dict[tuple[int, int], None] = {}
        """The newest of such spans that ranges began below."""
        self._forked_in: SpanContext | None = None
        """The first of such spans."""

    @property
    def origin_span(self) -> SpanContext | None:
        """The span of its parent in which this process was forked or started.

        A fork of an instrumented fork server that has imported the program learns of it when it
        exists already.
        """
        inherited_span = parent_process_span()
        if self._forked_in is not None or inherited_span is None:
            return self._forked_in
        return inherited_context(inherited_span)

    def note_parent_span(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that a range began below this span.

        A span whose end can't be seen here, as a remote one, is not remembered.
        """
        if not isinstance(span, ReadableSpan) or span.end_time is not None:
            return
        if self.began_here(span):
            remember(self._spans, (trace_id, span_id), span, MAX_REMEMBERED)
        else:
            self.note_inherited_span(span)

    def note_inherited_span(self, span: Any) -> None:
        """Note that a range or a step begins below this span, if it is another process's."""
        # A proxy's class is none: the current span may stand for a range that began here.
        if not issubclass(type(span), ReadableSpan) or self.began_here(span):
            return
        context = span.get_span_context()
        key = (context.trace_id, context.span_id)
        if key not in self._inherited:
            self._forked_in = self._forked_in or context
            remember(self._inherited, key, None, MAX_REMEMBERED)

    def began_here(self, span: ReadableSpan) -> bool:
        """Whether the span is none that this process has a copy of, as it was forked in it."""
        return (nanoseconds(span.start_time) or 0) >= self._since_ns

    def ended(self, span: ReadableSpan) -> None:
        """Note that a span has ended, if a range began below it: this is what it was at its end."""
        context = span.context if self._spans else None
        # A span context is a tuple whose first values are the ids.
        if context is not None and (key := context[:2]) in self._spans:
            self._spans[key] = span

    def was_inherited(self, trace_id: int, span_id: int) -> bool:
        """Whether this process was forked or started inside the span."""
        key = (trace_id, span_id)
        inherited_span = parent_process_span()
        if inherited_span is not None and (inherited_span.trace_id, inherited_span.span_id) == key:
            return True
        return key in self._inherited

    def find(self, trace_id: int, span_id: int) -> ReadableSpan | None:
        """The span; None if it isn't remembered."""
        return self._spans.get((trace_id, span_id))

    def span_end(self, trace_id: int, span_id: int) -> SpanEnd | None:
        """The end of the span; None if it hasn't ended, or isn't remembered."""
        span = self._spans.get((trace_id, span_id))
        if span is None or span.end_time is None:
            return None
        name = span.name
        failed = span.status.status_code is StatusCode.ERROR
        return SpanEnd(
            name if isinstance(name, str) else "",
            nanoseconds(span.start_time),
            nanoseconds(span.end_time),
            failed,
        )

    def forget(self, trace_id: int, span_id: int) -> None:
        """Forget a span that nobody asks for any more."""
        self._spans.pop((trace_id, span_id), None)

    def start_empty(self) -> None:
        """Forget the parent's spans in a forked child, whose copies of them will never end."""
        self._spans.clear()
        self._inherited, self._forked_in = {}, None
        self._since_ns = time.time_ns()


def nanoseconds(value: Any) -> int | None:
    """A span's time as OTLP takes it; None for anything else: the SDK keeps whatever the program
    gives.
    """
    return int(value) if isinstance(value, (int, float)) and 0 <= value <= LAST_NS else None


def inherited_context(inherited_span: ParentProcessSpan) -> SpanContext:
    """The context of the span of its parent in which this process was forked or started."""
    state = inherited_span.trace_state
    return SpanContext(
        inherited_span.trace_id,
        inherited_span.span_id,
        False,
        TraceFlags(inherited_span.flags),
        TraceState.from_header([state]) if state else None,
    )
