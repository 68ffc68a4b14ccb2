"""Rows become finished spans at a tracer provider's span processors.

    write(batch) ──► StepTraces (roots of ours) ──► plan_spans ──► writer ──► SpanMapper ──► processors ──► exporters
                                                    in columns     │          in chunks that they don't drop
                                                                   └ folds units into budgets, or takes every range

Whose child a range is: the range around it; at top level the span that was current when it began; else a root of ours.
A span that isn't sampled, and suppressed instrumentation, give no spans.

Every row is counted once (``accounts.py``); ``delivery.py`` says what becomes of spans. What raises in the middle of a batch is
dropped and counted (``batch_writing.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from opentelemetry.trace import Span, SpanContext, TracerProvider

from otel_recfn.batches.links import SharedLinks
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.lost_places import LostAt
from otel_recfn.sinks.paced import Paces
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.spans.batch_writing import BatchWriting, span_context
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Budgets, Volume
from otel_recfn.sinks.spans.current_target import CurrentTarget
from otel_recfn.sinks.spans.folding import MAX_ROWS_OF_A_UNIT, Folding
from otel_recfn.sinks.spans.leavable_calls import LAST_SECONDS
from otel_recfn.sinks.spans.mapping import code_attributes
from otel_recfn.sinks.spans.open_traces import OpenTraces
from otel_recfn.sinks.spans.open_units import OpenUnits
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.promised_traces import PromisedTraces
from otel_recfn.sinks.spans.span_hook import Hook
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.surroundings import FindsWorker, Surroundings, no_worker
from otel_recfn.sinks.spans.told_losses import ToldLosses, nothing_lost
from otel_recfn.sinks.spans.trace_boundaries import MAX_SPANS
from otel_recfn.sinks.spans.way import Way
from otel_recfn.sinks.spans.way_out import ThroughProcessors, WayOut
from otel_recfn.sinks.spans.writers import EveryRange, Folded, Writer


class SpansSink:
    """Hands spans to a provider's span processors.

    Every method may wait for an exporter, since the SDK's ``force_flush`` knows no timeout: give it to the session inside a
    ``BackgroundSink``.

    Args:
        tracer_provider: None for the global one, also when that is set later.
        roots_per_second: traces that we start ourselves, beyond the first hundred; None for all.
        promised: of these, the ones that the program was told of.
        links: shared with other sinks of the capture; None for its own.
        sent: is given each plan whose spans have been handed to the processors.
        volume: how many spans become of how many ranges.
        spans: the program's, above ranges.
        find_worker: what this process works for, if it is another one's worker.
        recorder_lost: ranges that the recorder has lost in all.
        dropped_by_thread: those of them that running threads dropped, by number of the thread.
        way_out: how spans leave; through the provider's processors where it is None.
    """

    name = "spans"
    losses = ("failed", "spans_failed")
    wants_unsampled = False
    tells_of_spans = False

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        roots_per_second: float | None = 1.0,
        promised: PromisedTraces | None = None,
        links: SharedLinks | None = None,
        sent: Callable[[SpanPlan], None] | None = None,
        hook: Hook | None = None,
        volume: Volume = EVERY_RANGE,
        spans: ProgramSpans | None = None,
        find_worker: FindsWorker = no_worker,
        way_out: WayOut | None = None,
        recorder_lost: Callable[[], int] = nothing_lost,
        dropped_by_thread: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._tracer_provider, self._roots_per_second, self._volume = tracer_provider, roots_per_second, volume
        self._hook, self._shared_links, self._find_worker = hook, links, find_worker
        self._promised = promised or PromisedTraces()
        folds = volume.of_unit is not None
        self._way_out = way_out or ThroughProcessors()
        self._delivery = self._way_out.delivery(folds)
        self._spans = spans or ProgramSpans(remembers=folds)
        self._surroundings = Surroundings(self._spans, find_worker)
        most = MAX_ROWS_OF_A_UNIT if folds else MAX_SPANS
        self._traces = StepTraces(roots_per_second, self._surroundings, self._promised, most)
        self._way = Way(self._delivery, self._traces, sent, ToldLosses(self._delivery, recorder_lost, dropped_by_thread))
        self._recorder_lost, self._dropped_by_thread = recorder_lost, dropped_by_thread
        self._target = CurrentTarget(tracer_provider, self._way_out, self._way, hook)
        self._writer = self._make_writer(volume)
        open_traces = OpenTraces(self._way, self._target.hook, volume.of_unit, span_context)
        self._writing = BatchWriting(self._target, self._way, self._surroundings, self._writer, open_traces, links, folds)
        self._closed = False

    def _make_writer(self, volume: Volume) -> Writer:
        if volume.of_unit is None:
            return EveryRange(self._way)
        most, budgets = volume.of_unit, Budgets(volume.of_unit, volume)

        def make_folding() -> Folding:
            return Folding(budgets, most, volume.min_duration_ns, OpenUnits(self._spans, span_context), self._traces)

        return Folded(self._way, make_folding, volume.per_second)

    def write(self, batch: Batch) -> None:
        """Build spans of a batch and hand them on, in chunks."""
        self._writing.write(batch)

    def write_open(self, ranges: Batch) -> None:
        """Hand on spans of the ranges that are open for long, each once."""
        self._writing.write_open(ranges)

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """A range begins below this span of the program's. From any thread."""
        self._spans.saw(trace_id, span_id, span)

    def has_target(self) -> bool:
        """Whether anything takes spans now. From any thread."""
        return self._target.resolve() is not None

    def lacks_provider(self) -> bool:
        """See SpansOfRanges.lacks_provider. From any thread."""
        return self._target.lacks_provider

    def trace_of(self, root: int) -> SpanContext | None:
        """The root span of ours above an outermost range without a span around it; None without one. From any thread."""
        target = self._target.resolve()
        if target is None:
            return None
        name = self._surroundings.name("")  # the sampler sees no more, as the name of a thread costs a lock
        return self._promised.trace_of(root, partial(self._surroundings.start_root, target, name))

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        """Whether the span is current, but not around the ranges of this process. From any thread."""
        return self._surroundings.is_outside(trace_id, span_id)

    def start_step(self, name: str, number: int, code: str) -> Span | None:
        """See SpansOfRanges.start_step. From any thread."""
        target = self._target.resolve()
        if target is None:
            return None
        return target.start_span(name, {"recfn.step.number": number} | (code_attributes(code) if code else {}))

    def note_drained(self, drained_ns: int) -> None:
        """What had ended by then has been written: units are decided although no batch came after their spans' ends."""
        self._writer.rest(drained_ns)

    def flush(self, timeout_s: float) -> bool:
        """Export what was handed on. Roots that may still grow stay open; those of idle threads don't."""
        if self._target.use() is None:
            return True
        self._delivery.drives = True
        try:
            self.idle()
            return self._delivery.flush(timeout_s)
        finally:
            self._delivery.drives = False

    def process_ends(self, timeout_s: float) -> float:
        """``close`` follows; afterwards the provider exports what is queued, for as long as that takes. No time for a backend
        that is known to be down: all would be abandoned anyway."""
        self._delivery.process_ends()
        return 0.0 if self._delivery.is_failing else max(0.0, timeout_s - LAST_SECONDS)

    def is_hopeless(self) -> bool:
        """Whether the backend is known to be down; one that is slow may get there in the time that it was given."""
        return self._delivery.has_failed

    def close(self, timeout_s: float) -> None:
        """End all roots, export, and leave the provider as it was. Without any time, what is left counts as failed."""
        try:
            if timeout_s > 0 and not self._closed:
                self._delivery.hurry(timeout_s)
                self._writing.write_last()
                self._delivery.flush(timeout_s)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """What is left counts as failed, and the provider is left as it was. From any thread, at any time."""
        self._closed = True
        self._delivery.remove()

    def counters(self) -> Mapping[str, int]:
        """What became of the rows; the module's docstring says how the counts add up.

        ``roots_limited`` and ``roots_unsampled`` count traces, ``unsampled`` their rows too.
        """
        traces = {"roots_limited": self._traces.limited, "roots_unsampled": self._traces.unsampled}
        spans, accounts = self._delivery.counters(), self._way.accounts
        counts = accounts.settled(spans["spans"]) if self._closed else accounts.counts
        return {**counts, **spans, **traces}

    def after_fork_in_child(self) -> Sink | None:
        """A fresh sink; the inherited exporters are unwatched first. Span ids got a new key when the child began."""
        self._delivery.remove()
        self._spans.start_empty()
        if self._shared_links is not None:
            self._shared_links.start_empty()
        return SpansSink(
            self._tracer_provider,
            self._roots_per_second,
            self._promised,
            self._shared_links,
            self._way.sent,
            self._hook,
            self._volume,
            self._spans,
            self._find_worker,
            self._way_out.after_fork_in_child(),
            self._recorder_lost,
            self._dropped_by_thread,
        )

    def set_pace(self, pace: Paces) -> None:
        """``pace`` is called before every chunk: it may sleep there, or raise to end the work."""
        self._way.pace = pace

    def set_backlog(self, has_more: Callable[[], bool]) -> None:
        """Units are decided together for the batches that follow each other."""
        self._writing.has_more = has_more

    def set_dropped(self, dropped: Callable[[], int], dropped_at: Callable[[], LostAt]) -> None:
        """These say how many rows never came here, and where the newest of them were lost."""
        self._way.losses.queue_dropped, self._way.losses.queue_dropped_at = dropped, dropped_at

    def note_gap(self) -> None:
        """Batches were lost: what they began and ended is unknown, so the roots that are open end here."""
        self._writing.note_gap()

    def idle(self) -> bool:
        """Nothing has been written for a while: finish the roots of threads that rest, and what has ended.

        Returns whether spans wait for exporters.
        """
        self._writing.idle(time.time_ns())
        self._delivery.idle()
        return self._writer.waits or bool(self._traces.finished)
