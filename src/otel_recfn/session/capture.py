"""A capture: what is to be recorded, and the sinks that receive it.

    sealed batch ──► the capture's view of it ──► queue ──► each sink in turn

A sink may record, drain, and start, stop and flush captures while it is written to. What is drained
for its own capture meanwhile waits in the queue, and the capture's end with it, until all sinks
have the batch that is being written.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_recfn.batches.selection import Selected, Selection, traced_calls
from otel_recfn.model.batch import Batch, OpenCalls
from otel_recfn.model.counters import balanced_counters
from otel_recfn.model.events import EventSource
from otel_recfn.recording.types import RecorderCounters
from otel_recfn.session.deadlines import seconds_to
from otel_recfn.session.guarded_sink import GuardedSink
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sources.range_spans import ExposedRanges
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log
from otel_recfn.support.seen_spans import RetainedSpans

if TYPE_CHECKING:
    from otel_recfn.sinks.spans.sink import SpansSink


OpenReports = dict[GuardedSink, Batch]
"""The ranges that have been open for long, by the sink that hears of them."""


class Capture:
    """A selection of what to record, and the sinks that receive it, for one run.

    The session lets one thread at a time use it.

    Args:
        sinks: receive every sealed batch, in this order.
        buffer_bytes: bound of each recording thread's buffer.
        spans: the sink as whose spans the program sees its ranges while they are current; None for
            none.
        open_range_s: sinks get ranges that have been open for so long, or for the shorter time
            that a sink asks for; None: they don't.
        exit_timeout_s: how long the end of the process may wait for what is outside of this
            machine.
        names_spans: whether a sink names the program's spans around ranges, which are retained for
            that.
    """

    def __init__(
        self,
        selected: Selected,
        sinks: Iterable[Sink],
        *,
        buffer_bytes: int,
        spans: SpansSink | None = None,
        open_range_s: float | None = None,
        exit_timeout_s: float = 2.0,
        names_spans: bool = True,
    ) -> None:
        self.selected = selected
        self.selection = Selection(selected)
        self.spans = spans
        self.exposed: ExposedRanges | None = None
        """The ranges that the program sees as current spans; None for none."""
        if spans is not None:
            self.exposed = _exposed_ranges(selected, self.selection, spans)
        self.buffer_bytes = buffer_bytes
        self.exit_timeout_s = exit_timeout_s
        self.names_spans = names_spans
        self.retained_spans: RetainedSpans | None = None
        """The program's spans that its sinks may name; None before it begins and after the sinks
        are closed.
        """
        self.sinks = [GuardedSink(sink, open_range_s) for sink in sinks]
        self._queue: deque[tuple[Batch, OpenReports]] = deque()
        """The capture's view of each batch that waits, with the reports for sinks."""
        self.is_delivering = False
        """Whether one of its sinks is being written to."""
        self._flushing: set[int] = set()
        """The threads that are flushing."""
        self._failed = False
        self.rows = 0
        """The number of rows that every sink has taken or missed."""
        self.is_used = False
        """Whether its ranges have a use: it was seen to have a tracer provider, or another
        capture ran beside it.
        """
        self.has_ended = False
        self.recorder_at_begin: RecorderCounters | None = None
        """The recorder's counters when it began; None until then."""
        self.recorder_at_end: RecorderCounters | None = None
        """The recorder's counters when it had ended."""

    @property
    def wants_unsampled(self) -> bool:
        """Whether one of its sinks has a use for ranges in spans that are not sampled."""
        return any(one.wants_unsampled for one in self._working_sinks)

    @property
    def traces_calls(self) -> bool:
        """Whether it asks for Python calls.

        Then its batches say which are open, as traces number calls by their begins.
        """
        return EventSource.PYTHON_CALL in self.selected.sources

    @property
    def _working_sinks(self) -> list[GuardedSink]:
        """The sinks that haven't failed."""
        return [one for one in self.sinks if not one.is_removed]

    @property
    def _span_sinks(self) -> list[GuardedSink]:
        """The sink of spans, which in a forked child is another one than here; empty if there is
        none.
        """
        return [one for one in self._working_sinks if type(one.sink) is type(self.spans)]

    def begin_checks(self, now_s: float) -> None:
        """Begin to look for open ranges at this moment."""
        for one in self.sinks:
            one.begin_checks(now_s)

    def is_check_due(self, now_s: float) -> bool:
        """Whether it is time to look for ranges that are open for long, for one of the sinks."""
        return any(one.is_check_due(now_s) for one in self.sinks)

    def put(
        self,
        batch: Batch,
        view: Callable[[Batch], Batch] | None = None,
        check_s: float | None = None,
    ) -> None:
        """Queue the capture's view of a batch, as ``view`` makes it; None: that is all of it.

        ``check_s`` is the time of a look for ranges that have been open for long; None: there is
        none.
        """
        try:
            seen = view(batch) if view is not None else batch
            spans = batch.spans if self.names_spans else ()
            has_more = seen.opened or seen.steps or seen.samples or check_s is not None or spans
            if not (seen.closed or has_more) and (self._queue or self.is_delivering):
                # Only the time of a drain is in it, and a sink that starts captures as it is
                # written to makes many.
                return
            reports = self._open_reports(seen, check_s) if check_s is not None else {}
            closed = self._without_copies(seen)
            if closed.spans is not spans:
                closed = replace(closed, spans=spans)
            self._queue.append((closed, reports))
        except Exception as error:
            self.rows += batch.closed
            if raised_by_signal_handler(error):
                raise
            if not self._failed:
                self._failed = True
                log.exception(
                    "a capture could not read what was recorded; it goes on, and what it misses is"
                    " counted"
                )

    def _open_reports(self, seen: Batch, check_s: float) -> OpenReports:
        """The ranges that have been open for long, for each sink for which a look is due."""
        copies = seen.take(slice(seen.closed, None))
        reports = [(one, one.open_report(copies, check_s)) for one in self._working_sinks]
        return {one: report for one, report in reports if report is not None}

    def _without_copies(self, seen: Batch) -> Batch:
        """The rows of a batch that have ended. Of the copies of open ranges behind them it has only
        the open calls, if a sink asks for them.
        """
        closed = seen
        if seen.closed < len(seen):
            closed = seen.take(
                slice(seen.closed), opened=seen.opened, steps=seen.steps, samples=seen.samples
            )
        if self.traces_calls:
            closed = replace(closed, open_calls=_open_calls(seen))
        return closed

    def deliver(self) -> None:
        """Write what waits to the sinks. What they record meanwhile waits for the next time."""
        if self.is_delivering:
            return
        self.is_delivering = True
        try:
            waiting = len(self._queue)
            while self._queue and waiting:
                waiting -= 1
                seen, reports = self._queue.popleft()
                try:
                    for one in self._working_sinks:
                        one.write(seen, reports.get(one))
                finally:  # a sink that didn't get it has missed it
                    self.rows += len(seen)
        finally:
            self.is_delivering = False

    def flush(self, timeout_s: float, *, spans_alone: bool = False) -> bool:
        """Flush the sinks within ``timeout_s`` seconds in all, from any thread, also while another
        one writes.

        False when that was not enough, or one of the sinks calls as it is flushed.

        Args:
            timeout_s: the seconds.
            spans_alone: only the sink of spans is flushed, so that nobody waits for a disk.
        """
        deadline = time.monotonic() + timeout_s
        own = threading.get_ident()
        if own in self._flushing:
            return False
        self._flushing.add(own)
        try:
            sinks = self._span_sinks if spans_alone else self._working_sinks
            flushed = [one.flush(deadline) for one in sinks]
            return all(flushed)
        finally:
            self._flushing.discard(own)

    def close(self, timeout_s: float) -> None:
        """Close every sink within ``timeout_s`` seconds in all, after what still waits for it."""
        deadline = time.monotonic() + timeout_s
        while self._queue:  # this ends, because it has left the session and its sinks add nothing
            self.deliver()
        for one in self._working_sinks:
            with one.guarded():
                one.sink.close(seconds_to(deadline))
        self.retained_spans = None

    def counters(self, recorder: RecorderCounters) -> dict[str, int]:
        """Counts of what was recorded for it, and of what became of that; see
        ``model/counters.py``.
        """
        sinks: dict[str, int] = {}
        for one in self.sinks:
            sinks |= one.counters(self.rows)
        now = self.recorder_at_end or recorder
        return balanced_counters(self.rows, now.since(self.recorder_at_begin or now), sinks)

    def after_fork_in_child(self) -> None:
        """Continue with the sinks that are fit for a forked child; counts begin anew."""
        self.selection = Selection(self.selected)
        self._queue = deque()
        self.is_delivering = False
        self._flushing = set()
        self.rows = 0
        self.recorder_at_begin = RecorderCounters()
        self.sinks = [
            fresh for one in self._working_sinks if (fresh := one.after_fork_in_child()) is not None
        ]


def _exposed_ranges(selected: Selected, selection: Selection, spans: SpansSink) -> ExposedRanges:
    return ExposedRanges(
        takes=selected.takes,
        had_begun=selection.has_begun_before,
        has_target=spans.has_target,
        trace_of=spans.trace_of,
        is_outside=spans.is_outside,
        start_step=spans.start_step,
        note_parent_span=spans.note_parent_span,
    )


def _open_calls(batch: Batch) -> OpenCalls:
    """The traced calls among a batch's copies of open ranges."""
    copies = batch.take(slice(batch.closed, None))
    calls = traced_calls(copies)
    return OpenCalls(copies.event_id[calls], copies.start_ns[calls], copies.caller[calls])
