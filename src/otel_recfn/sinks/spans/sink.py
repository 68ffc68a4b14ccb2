"""Rows become finished spans at a tracer provider's span processors.

    write(batch) ──► StepTraces (roots of ours) ──► plan_spans ──► writer ──► SpanMapper ──► processors ──► exporters
                                                    in columns     │          in chunks that they don't drop
                                                                   └ folds units into budgets, or takes every range

Whose child a range is: the range around it; at top level the span that was current when it began; else a root of ours.
A span that isn't sampled, and suppressed instrumentation, give no spans.

No span is sent whose parent isn't, whatever ends or fails in the middle of a batch (``pending.py``).

Every row is counted once (``accounts.py``); ``delivery.py`` says what becomes of spans.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from opentelemetry.trace import Span, SpanContext, TracerProvider, TraceState

from otel_recfn.batches.ends import children_first, cut_off_as_shown
from otel_recfn.batches.links import ForwardBackwardLinks
from otel_recfn.batches.rows.choice import rows_planner
from otel_recfn.batches.shared_links import FindsLinks, SharedLinks
from otel_recfn.batches.span_plan import Fate, SpanPlan, fate_of, fates_of, plan_spans
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.errors import ATTEMPTS, OUT_OF_MEMORY
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Budgets, Volume
from otel_recfn.sinks.spans.folding import MAX_ROWS_OF_A_UNIT, Folding
from otel_recfn.sinks.spans.hooked_spans import HookedMapper
from otel_recfn.sinks.spans.open_traces import OpenTraces
from otel_recfn.sinks.spans.open_units import OpenUnits
from otel_recfn.sinks.spans.pending import Pending, PendingBatches
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.promised_traces import PromisedTraces
from otel_recfn.sinks.spans.provider import SAMPLED, ProviderResolver, SpanTarget
from otel_recfn.sinks.spans.span_hook import Hook, SpanHook
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.surroundings import FindsWorker, Surroundings, no_worker
from otel_recfn.sinks.spans.trace_boundaries import MAX_SPANS
from otel_recfn.sinks.spans.turn import Turn
from otel_recfn.sinks.spans.way_out import ThroughProcessors, WayOut
from otel_recfn.sinks.spans.writers import EveryRange, Folded, Way, Writer, no_pause

SETTLED_NS = 500_000_000
"""What ended so long ago has certainly been drained where drains find nothing."""
_logger = logging.getLogger(__name__)


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
        way_out: how spans leave; through the provider's processors where it is None.
    """

    name = "spans"
    losses = ("spans_failed",)
    wants_unsampled = False

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
    ) -> None:
        self._tracer_provider, self._roots_per_second, self._volume = tracer_provider, roots_per_second, volume
        self._promised = promised or PromisedTraces()
        self._resolver = ProviderResolver(tracer_provider)
        self._target: SpanTarget | None = None
        self._turn = Turn()
        self._way_out = way_out or ThroughProcessors()
        self._delivery = self._way_out.delivery(self._turn, volume.of_unit is not None)
        self._spans = spans or ProgramSpans(remembers=volume.of_unit is not None)
        self._find_worker = find_worker
        self._surroundings = Surroundings(self._spans, find_worker)
        most = MAX_SPANS if volume.of_unit is None else MAX_ROWS_OF_A_UNIT
        self._traces = StepTraces(roots_per_second, self._surroundings, self._promised, most)
        self._way = Way(self._delivery, self._traces, sent)
        self._planner = rows_planner()  # it imports, which the spans' thread must not
        self._writer = self._make_writer(volume)
        self._shared_links = links
        self._hook_function, self._hook = hook, SpanHook(hook) if hook is not None else None
        self._open_traces = OpenTraces(self._way, self._hook, volume.of_unit, _span_context)
        self._links: FindsLinks = links or ForwardBackwardLinks()
        self._pending = PendingBatches()
        self._logged = self._closed = False

    def _make_writer(self, volume: Volume) -> Writer:
        if volume.of_unit is None:
            return EveryRange(self._way)
        budgets = Budgets(volume.of_unit, volume)
        units = OpenUnits(self._spans, _span_context, self._planner)
        return Folded(self._way, Folding(budgets, volume.of_unit, volume.min_duration_ns, units, self._traces))

    def has_room(self) -> bool:
        """Whether few batches wait for memory; where many do, tries again to write them."""
        if not self._pending.has_room():
            self._go_on()
        return self._pending.has_room()

    def write(self, batch: Batch) -> None:
        """Build spans of a batch and hand them on, in chunks. What there is no memory for counts as failed.

        Raises:
            MemoryError: nothing of it was taken.
        """
        self._pending.add(batch)
        try:
            self._go_on()
        except OUT_OF_MEMORY:  # even for saying so; it is pending, and will be counted
            pass

    def write_open(self, ranges: Batch) -> None:
        """Hand on spans of the ranges that are open for long, each once. For which there is no memory, the next call does."""
        target = self._current_target()
        if target is not None:
            with contextlib.suppress(*OUT_OF_MEMORY):
                self._open_traces.write(self._surroundings.without_inherited(ranges), target)

    def _go_on(self) -> None:
        """Write what is pending; of a batch that there is no memory for only what must not be missing, now or a batch later."""
        for _ in range(2):
            try:
                return self._write_pending()
            except OUT_OF_MEMORY:
                self._pending.cut_first()
                self.note_gap()
                self._log_once("there was no memory for some rows, which count as failed")
            except Exception:
                self._pending.clear()
                raise
        return None

    def _write_pending(self) -> None:
        self._delivery.hand()  # what is left where there was no memory in the middle
        while (pending := self._pending.first()) is not None:
            if pending.dropped:
                counts = self._way.accounts.plus(rows=pending.dropped, failed=pending.dropped)
                self._way.accounts.counts, pending.dropped = counts, 0
            elif pending.short or pending.taken:  # it can't be planned again in the middle
                self._pending.reduce_first()
            else:
                self._write(pending)
                self._pending.finish_first()

    def _write(self, pending: Pending) -> None:
        pending.batch = cut_off_as_shown(self._surroundings.without_inherited(pending.batch))
        if self._volume.of_unit is not None:
            pending.batch = children_first(pending.batch)
        target, batch, accounts = self._current_target(), pending.batch, self._way.accounts
        if target is None:
            counts = accounts.plus(rows=len(batch), no_provider=len(batch))
            accounts.counts, pending.taken = counts, len(batch)
            return
        fates = fates_of(self._planner, batch)
        rootless = frozenset([index for index, one in enumerate(batch.contexts) if fate_of(one) == Fate.ROOTLESS])
        self._traces.advance(batch, fates == Fate.ROOTLESS, rootless, target)
        self._writer.begin_batch(batch)
        if fates.max(initial=0) < Fate.IN_SPAN:  # below spans that are not sampled, say: costs next to nothing
            accounts.counts, pending.taken = accounts.plus_rows(fates, pending.taken, len(batch)), len(batch)
        else:
            links = self._links.match(batch)
            plan = plan_spans(self._planner, batch, fates, links, _span_context, self._root_context)
            self._writer.write(plan, pending)
        self._write_ended()

    def _write_ended(self) -> None:
        self._writer.write_ended()
        self._way.write_roots()

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """A range begins below this span of the program's. From any thread."""
        self._spans.saw(trace_id, span_id, span)

    def has_target(self) -> bool:
        """Whether anything takes spans now. From any thread."""
        return self._resolver.resolve() is not None

    def trace_of(self, root: int) -> SpanContext | None:
        """The root span of ours above an outermost range without a span around it; None without one. From any thread."""
        target = self._resolver.resolve()
        if target is None:
            return None
        name = self._surroundings.name("")  # the sampler sees no more, as the name of a thread costs a lock
        return self._promised.trace_of(root, partial(self._surroundings.start_root, target, name))

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        """Whether the span is current, but not around the ranges of this process. From any thread."""
        return self._surroundings.is_outside(trace_id, span_id)

    def start_step(self, name: str, number: int) -> Span | None:
        """A span for a step that begins now, below the current span; None where nothing takes spans. From any thread."""
        target = self._resolver.resolve()
        return target.start_span(name, {"recfn.step.number": number}) if target is not None else None

    def flush(self, timeout_s: float) -> bool:
        """Export what was handed on. Roots that may still grow stay open; those of idle threads don't."""
        if self._current_target() is None:
            return True
        self._go_on()
        self.idle()
        return self._delivery.flush(timeout_s)

    def process_ends(self, timeout_s: float) -> float:
        """``close`` follows; afterwards the provider exports what is queued, for as long as that takes. No time for a backend
        that is known to be down: all would be abandoned anyway."""
        self._delivery.process_ends()
        return 0.0 if self._delivery.is_failing else timeout_s

    def close(self, timeout_s: float) -> None:
        """End all roots, export, and leave the provider as it was."""
        self._delivery.hurry(timeout_s)
        self._write_last()
        if timeout_s > 0:
            self._delivery.flush(timeout_s)
        self._delivery.remove()

    def _write_last(self) -> None:
        for step in (self._go_on, self._traces.close_all, self._writer.write_last, self._way.write_roots):
            with contextlib.suppress(*OUT_OF_MEMORY):  # what is left of it is counted below
                step()
        with contextlib.suppress(*OUT_OF_MEMORY):  # the background sink counts them as abandoned
            rows = self._pending.rows()
            self._way.accounts.counts = self._way.accounts.plus(rows=rows, failed=rows)
            self._pending.clear()
        self._closed = True

    def give_up(self, batches: Sequence[Batch], timeout_s: float) -> None:
        """Drop what is left, here and in these batches, because the time is over, but for the parents of spans that were handed
        on."""
        self._way.pace = no_pause
        self._delivery.hurry(timeout_s)
        left = list(batches)
        # Outermost ranges that were announced may be among what is dropped: nothing more is to be placed in them.
        for step in (self._writer.note_gap, partial(self._pending.give_up, left), self._traces.close_all, self._writer.give_up):
            _tried(step)  # where there is no memory, what is here already is written, as far as memory goes
        self._go_on()

    def supersede(self, left: Callable[[], Sequence[Batch]]) -> bool:
        """In place of ``give_up`` and ``close``, where another thread waits in one of the methods for an exporter.

        False if none does. Spans go to the processors that only queue them; the thread that waits hands them to the others
        when it is back (``finish_superseded``).
        """
        if not self._turn.take():
            return False
        try:
            self._delivery.supersede()
            self.give_up(left(), 0.0)
            self._write_last()
            self._delivery.remove()
        finally:
            self._turn.give_back()
        return True

    def finish_superseded(self) -> None:
        """See ``supersede``."""
        self._delivery.hand_left()

    def counters(self) -> Mapping[str, int]:
        """What became of the rows; the module's docstring says how the counts add up.

        ``roots_limited`` and ``roots_unsampled`` count traces, ``unsampled`` their rows too.
        """
        traces = {"roots_limited": self._traces.limited, "roots_unsampled": self._traces.unsampled}
        counts = self._way.accounts.counts
        if self._closed:  # there was no memory to tell of these
            counts = {**counts, "failed": counts["failed"] + counts["folding"], "folding": 0}
        return {**counts, **self._delivery.counters(), **traces}

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
            self._hook_function,
            self._volume,
            self._spans,
            self._find_worker,
            self._way_out.after_fork_in_child(),
        )

    def set_pace(self, pace: Callable[[], None]) -> None:
        """``pace`` is called before every chunk: it may sleep there, or raise to end the work."""
        self._way.pace = pace

    def note_gap(self) -> None:
        """Batches were lost: what they began and ended is unknown, so the roots that are open end here."""
        self._traces.close_all()
        self._writer.note_gap()
        if isinstance(self._links, SharedLinks):
            self._links = ForwardBackwardLinks()  # the others' lead to what was lost, too

    def idle(self) -> None:
        """Nothing has been written for a while: finish the roots of threads that rest, and what has ended."""
        now_ns = time.time_ns()
        self._traces.close_idle(now_ns)
        self._writer.rest(now_ns - SETTLED_NS)
        self._write_ended()
        self._delivery.idle()

    def _current_target(self) -> SpanTarget | None:
        target = self._resolver.resolve()
        if target is None:
            return None
        if target is not self._target:
            mapper = self._way_out.mapper(target) if self._hook is None else HookedMapper(target, self._hook)
            self._target, self._way.mapper = target, mapper
        self._delivery.use(target)
        return target

    def _root_context(self, root: int) -> SpanContext | None:
        trace = self._traces.find(root)
        return trace.context if trace is not None else None

    def _log_once(self, message: str) -> None:
        if not self._logged:
            self._logged = True
            _logger.exception("otel-recfn: %s", message)


def _tried(step: Callable[[], object]) -> None:
    """A step that may be taken again where it finds no memory: as a drop of many rows frees some, also at once."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(*OUT_OF_MEMORY):
            step()
            return


def _span_context(context: SpanContextRef) -> SpanContext:
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)
