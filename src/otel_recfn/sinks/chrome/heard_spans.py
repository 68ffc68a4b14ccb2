"""The program's spans of which begins and ends are heard, as slices.

A span says whether it nests in its thread (``support/span_log.py``). One that doesn't, as that of a
task that waits while another one works, is an asynchronous event, as is each that is still open.
"""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.model.batch import Batch, ProgramSpan, Track

MAX_OPEN = 1000
"""The maximum number of open spans in the file, which are written again with each batch."""
Key = tuple[int, int]
"""The trace id and the span id of a span."""


class SpanSlice(NamedTuple):
    """A span, or a stretch of a thread's time in which it was current.

    Times are in Unix nanoseconds.
    """

    key: Key
    parent_id: int
    """The parent's span id; 0 if there is none or it isn't known."""
    name: str
    track: Track
    start_ns: int
    end_ns: int
    nests: bool
    """Whether it nests in the ranges of its thread."""


class HeardSpans(NamedTuple):
    """The spans that are heard of."""

    threads: frozenset[int] = frozenset()
    """The operating system's ids of the threads in which spans have begun."""
    open: tuple[ProgramSpan, ...] = ()
    """The open spans, in the order of their begins."""
    until_ns: int = 0
    """The time up to which they are known."""

    def with_batch(self, batch: Batch) -> tuple[HeardSpans, list[SpanSlice]]:
        """The same after a batch, and the slices of the spans that have ended."""
        until_ns = max(self.until_ns, batch.drained_ns, int(batch.end_ns.max(initial=0)))
        if not batch.spans:
            return self._replace(until_ns=until_ns), []
        still_open = {(span.trace_id, span.span_id): span for span in self.open}
        over = []
        for span in batch.spans:
            key = span.trace_id, span.span_id
            still_open.pop(key, None)
            if span.end_ns:
                over.append(_span_slice(span, span.end_ns))
            else:
                still_open[key] = span
            until_ns = max(until_ns, span.start_ns, span.end_ns)
        threads = self.threads | {span.thread.native_id for span in batch.spans}
        return HeardSpans(threads, tuple(still_open.values())[-MAX_OPEN:], until_ns), over

    def open_slices(self) -> list[SpanSlice]:
        """The slices of the open spans, as they are so far."""
        return [_span_slice(span, max(self.until_ns, span.start_ns)) for span in self.open]


def _span_slice(span: ProgramSpan, end_ns: int) -> SpanSlice:
    return SpanSlice(
        key=(span.trace_id, span.span_id),
        parent_id=span.parent_id,
        name=span.name,
        track=span.thread,
        start_ns=span.start_ns,
        end_ns=end_ns,
        nests=span.nests,
    )
