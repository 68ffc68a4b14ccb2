"""The program's own spans that ranges were recorded below: they say when they end, how long they took, and whether they failed.

program's thread   saw(span)  ──►  remembered, the newest  ──►  find ─ forget   sink's thread
"""

from __future__ import annotations

import contextlib
import time
from itertools import islice

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

MAX_REMEMBERED = 1 << 12


class ProgramSpans:
    """By trace id and span id. Every method may be called from any thread.

    Args:
        remembers: somebody will ask for them.
    """

    def __init__(self, remembers: bool = True) -> None:
        self._remembers = remembers
        self._spans: dict[tuple[int, int], ReadableSpan] = {}
        self._since_ns = 0
        """What began before is another process's."""
        self._inherited: frozenset[tuple[int, int]] = frozenset()
        """Such spans that ranges began below."""
        self.forked_in: SpanContext | None = None
        """The first of these."""

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """A range began below this span. One whose end can't be seen here, as a remote one's, is not remembered."""
        if not isinstance(span, ReadableSpan) or span.end_time is not None:
            return
        if (span.start_time or 0) < self._since_ns:
            self._note_inherited(trace_id, span_id, span)
            return
        if not self._remembers:
            return
        self._spans[trace_id, span_id] = span
        if len(self._spans) > MAX_REMEMBERED:
            self._forget_oldest()

    def was_inherited(self, trace_id: int, span_id: int) -> bool:
        """Whether this process was forked inside the span."""
        return (trace_id, span_id) in self._inherited

    def find(self, trace_id: int, span_id: int) -> ReadableSpan | None:
        """The span; None where it isn't remembered."""
        return self._spans.get((trace_id, span_id))

    def forget(self, trace_id: int, span_id: int) -> None:
        """Nobody asks for it any more."""
        self._spans.pop((trace_id, span_id), None)

    def start_empty(self) -> None:
        """Called in a forked child: the copies of its parent's spans that it has will never end."""
        self._spans.clear()
        self._inherited, self.forked_in = frozenset(), None
        self._since_ns = time.time_ns()

    def _note_inherited(self, trace_id: int, span_id: int, span: ReadableSpan) -> None:
        if (trace_id, span_id) in self._inherited:
            return
        if self.forked_in is None:
            self.forked_in = span.get_span_context()
        self._inherited |= {(trace_id, span_id)}  # few: a child has no more than its parent had current at the fork

    def _forget_oldest(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread adds one meanwhile, and sees to it
            for key in list(islice(self._spans, MAX_REMEMBERED // 4)):
                self._spans.pop(key, None)
