"""The sink of spans: rows become finished spans at a tracer provider's span processors.

    drain thread:   write(batch) ──► StepTraces (roots of ours) ──► Folding ──► decided units
    sender thread:  decided units ──► SpanMapper ──► processors, in chunks that they don't drop
                    ──► exporters

Whose child a range is: the range around it in the same span; else the span that was current as it
began; else a root of ours. A span that isn't sampled, and suppressed instrumentation, give no
spans.

No row is dropped on its way to its unit. A unit is sent whole, parents first, or not at all; every
row counts once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from opentelemetry.trace import Span, SpanContext, TracerProvider

from otel_recfn.batches.number_sets import equals
from otel_recfn.batches.outcomes import Outcome, are_rootless
from otel_recfn.batches.parts import Parts
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import STEP_NUMBER, RecordScope, RowKind
from otel_recfn.sinks.protocol import NO_MEMORY, Sink
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import Delivery, SpanDelivery
from otel_recfn.sinks.spans.every_range import EveryRange
from otel_recfn.sinks.spans.folding import Folding
from otel_recfn.sinks.spans.open_traces import OpenTraces
from otel_recfn.sinks.spans.process_context import (
    FindsWorker,
    ProcessContext,
    calling_thread,
    thread_name,
)
from otel_recfn.sinks.spans.processor import OwnSpanProcessor
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.range_attributes import base_attributes, code_attributes
from otel_recfn.sinks.spans.request_batches import RequestBatches
from otel_recfn.sinks.spans.sender import DecidedUnits, Sender, StepSpans
from otel_recfn.sinks.spans.span_hook import Hook, SpanHook
from otel_recfn.sinks.spans.span_target import RootStart
from otel_recfn.sinks.spans.step_traces import StepTraces, trace_start
from otel_recfn.sinks.spans.trace_roots import TraceRoots
from otel_recfn.support.logs import log
from otel_recfn.support.request_batch import RequestBatch
from otel_recfn.support.texts import utf8_text

IDLE_SECONDS = 1.5
"""The seconds without a row after which units below spans whose end can't be seen are decided."""
Result = TypeVar("Result")


class Process(NamedTuple):
    """The answers that a sink needs from its process; the defaults stand for no answer."""

    recorder_lost: Callable[[], int] = lambda: 0
    """The number of ranges that the recorder has lost in all."""
    flush: Callable[[float], bool] = lambda _timeout_s: True
    """A function that delivers what was recorded within seconds, before the provider's
    ``force_flush`` and ``shutdown``.
    """
    deliver_by: Callable[[], float] = lambda: math.inf
    """The ``time.monotonic()`` until which ranges are taken as the process ends; infinite while
    it goes on.
    """
    exit_timeout_s: float = 2.0
    """The seconds that ``close`` may then wait for a backend."""
    find_worker: FindsWorker = lambda: None
    """A function that finds what this process works for, if it is another one's worker."""


NO_PROCESS = Process()


class SpansSink(Sink):
    """A sink that hands spans to a provider's span processors.

    Args:
        tracer_provider: None for the global one, also when that is set later.
        roots_per_second: traces that we start ourselves, beyond the first hundred; None for all.
        delivery: how spans leave; None: through the provider's processors.
        parent: the sink of the process that this one was forked from.
    """

    name = "spans"
    wants_unsampled = False  # they become no spans

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        roots_per_second: float | None = 1.0,
        volume: Volume = EVERY_RANGE,
        hook: Hook | None = None,
        delivery: Delivery | None = None,
        process: Process = NO_PROCESS,
        parent: SpansSink | None = None,
    ) -> None:
        self._lock = threading.RLock()
        """The lock for changes of units, by whoever writes or flushes."""
        self._arguments = (tracer_provider, roots_per_second, volume, hook)
        self._volume = volume
        self._process = process
        self._has_hook = hook is not None
        self._spans: ProgramSpans = parent._spans if parent is not None else ProgramSpans()
        self._roots: TraceRoots = parent._roots if parent is not None else TraceRoots()
        self._process_context = ProcessContext(self._spans, process.find_worker)
        self._traces = StepTraces(roots_per_second, self._process_context, self._roots)
        self._batches: RequestBatches = parent._batches if parent is not None else RequestBatches()
        self._folding: Folding | EveryRange | None = self._new_folding()
        """The folding; None after a step of it raised: the next one begins without any unit."""
        self._undecided = 0
        """The ranges in units that aren't decided."""
        self._own: OwnSpanProcessor = (
            parent._own
            if parent is not None
            else OwnSpanProcessor(self._spans.ended, process.flush)
        )
        self._delivery = delivery or SpanDelivery(self._own)
        self._step_spans: StepSpans = (
            parent._step_spans if parent is not None else StepSpans(self._spans)
        )
        otherwise = parent._resolver.otherwise if parent is not None else self._delivery.provider
        step_spans = None if self._delivery.needs_processors else self._step_spans
        self._resolver: ProviderResolver = ProviderResolver(
            tracer_provider, otherwise, self._own.register, step_spans
        )
        span_hook = SpanHook(hook) if hook is not None else None
        self._sender = Sender(self._resolver, self._delivery, span_hook, process.recorder_lost)
        self._step_spans.sender = self._sender
        self._open_traces = OpenTraces(self._traces, span_hook, volume)
        self._written_at = time.monotonic()
        self._parts = Parts()
        self._logged_memory = False

    def _new_folding(self) -> Folding | EveryRange:
        limit = self._volume.unit_budget
        if limit is None:
            return EveryRange(torch_names=self._volume.torch_names, parents_first=self._has_hook)
        return Folding(limit, self._volume, self._spans, self._traces, self._batches)

    def start(self) -> None:
        """Start the sender's thread, and look for a provider, which the first unit and the first
        range do otherwise.
        """
        self._sender.start()
        self._resolver.resolve()

    def write(self, batch: Batch) -> None:
        """Fold a batch into its units, and send those that are decided now."""
        with self._lock:
            if len(batch) or batch.opened or batch.steps or batch.samples:
                self._written_at = time.monotonic()
                self._add_in_parts(batch)
            try:
                self._traces.close_idle(batch.drained_ns)
                self._decide(
                    batch.drained_ns, is_idle=time.monotonic() - self._written_at > IDLE_SECONDS
                )
                if batch.long_open is not None:
                    self._send_open(batch.long_open)
            except NO_MEMORY:  # the batch was taken, so it isn't missed; what is lost was counted
                if not self._logged_memory:
                    self._logged_memory = True
                    log.error(
                        "otel-recfn: there was no memory to decide which ranges become spans; they"
                        " are counted as lost"
                    )

    def _add_in_parts(self, batch: Batch) -> None:
        """Add a batch to its units; as the process ends, what there is no time for is dropped."""
        remaining = len(batch)
        continues = False
        try:
            for part in self._cut(batch) if self._has_time() else ():
                self._add(part, continues)
                remaining -= len(part)
                continues = True
                if not self._has_time():
                    break
            self._sender.count(recorded=remaining, shutdown=remaining)
        except BaseException:
            # Whoever calls counts all of a batch as missed. So what was counted of it is taken out.
            self._sender.count(recorded=remaining - len(batch), error=remaining - len(batch))
            raise

    def _cut(self, batch: Batch) -> Iterable[Batch]:
        # A part costs an order by time and copies of all columns, each of which waits for the GIL
        # beside a thread that computes in Python. So batches are cut only where one may take long:
        # a sampler is asked for each root, and may wait for a network; and an exit has a deadline.
        if self._process_ends or _begins_roots(batch):
            return self._parts.cut(batch)
        return (batch,)

    @property
    def _process_ends(self) -> bool:
        return self._process.deliver_by() < math.inf

    def _has_time(self) -> bool:
        return time.monotonic() < self._process.deliver_by()

    def _add(self, batch: Batch, continues: bool) -> None:
        target = self._resolver.resolve()
        if target is None:
            self._sender.count(recorded=len(batch), unsampled=len(batch))
            return
        rows = int(np.count_nonzero(equals(batch.kind, RowKind.RANGE)))
        batch = self._process_context.without_inherited(batch)
        roots = self._traces.advance(batch, target)
        added, decided = self._folded(
            lambda folding: folding.add(batch, roots, continues=continues)
        )
        ranges = sum(added.outcomes[Outcome.SUPPRESSED :])
        unsampled = added.outcomes[Outcome.SUPPRESSED] + added.outcomes[Outcome.UNSAMPLED]
        # Without processors, steps are counted as their spans are sent.
        steps = rows - ranges if self._delivery.needs_processors else 0
        self._sender.count(
            recorded=ranges + steps,
            exported=steps,
            unsampled=unsampled,
            folded=ranges - unsampled - added.planned,
            folding=added.planned,
        )
        self._undecided += added.planned
        self._put(decided)

    def _decide(self, drained_ns: int = 0, *, is_idle: bool, flushes: bool = False) -> None:
        """Send the units to which nothing more can come.

        If it ``is_idle``, also those below spans whose end can't be seen; for a flush, also what
        there is of the others.
        """
        traces = self._traces
        self._put(
            self._folded(
                lambda each: each.due(
                    traces.take_finished(), drained_ns, is_idle=is_idle, flushes=flushes
                )
            )
        )
        self._put_requests(drained_ns)

    def _put_requests(self, drained_ns: float) -> None:
        """Send the spans of requests whose batch has ended and all of whose ranges have come."""
        has_unit = self._folding.has_unit if self._folding is not None else lambda _span: False
        for units in self._batches.take_complete(drained_ns, has_unit):
            self._sender.put_added(units)

    def _send_open(self, ranges: Batch) -> None:
        """Hand on spans of the ranges that are open for long, each once."""
        target = self._resolver.resolve()
        if target is not None:
            self._put(
                self._open_traces.new(self._process_context.without_inherited(ranges), target)
            )

    def _folded(self, step: Callable[[Folding | EveryRange], Result]) -> Result:
        """The result of a step of folding.

        If it raises, as without memory, what is undecided is lost and counted.

        Also if a signal handler raises in it: afterwards the native stage and what waits here may
        not agree.
        """
        try:
            self._folding = self._folding or self._new_folding()
            return step(self._folding)
        except BaseException:
            self._sender.count(error=self._undecided, folding=-self._undecided)
            self._folding, self._undecided = None, 0  # set first, since a new one takes memory too
            raise

    def _put(self, decided: Iterable[DecidedUnits]) -> None:
        for units in decided:
            self._undecided -= units.ranges
            self._sender.put(units)

    def note_parent_span(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that a range begins below this span of the program's. From any thread."""
        # So that a provider that is set late is found before the program flushes it.
        self._resolver.resolve()
        self._spans.note_parent_span(trace_id, span_id, span)

    def has_target(self) -> bool:
        """Whether anything takes spans now. From any thread."""
        return self._resolver.resolve() is not None

    def lacks_provider(self) -> bool:
        """Whether nothing takes spans because the program has set no tracer provider, or not
        yet.

        From any thread.
        """
        return self._resolver.lacks_provider

    def trace_of(self, root: int) -> SpanContext | None:
        """The root span of ours above an outermost range without a span around it, from its event
        id; None without one.

        From any thread.
        """
        target = self._resolver.resolve()
        if target is None:
            return None
        first = self._roots.known_first_range(root)
        if first is None:
            first = trace_start(root).first
            # The sink may have put that range into another one's trace.
            first = self._roots.first_range(root, self._roots.known_first_range(first) or first)

        def start() -> RootStart | None:
            begin = trace_start(root)
            name = self._traces.name(begin.source, begin.name, begin.flags, thread_name())
            return self._process_context.start_root(target, name)

        decided = self._roots.decide(first, start)
        return decided.context if decided is not None else None

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        """Whether the span is current, but not around the ranges of this process.

        From any thread.
        """
        return self._process_context.is_outside(trace_id, span_id)

    def start_step(
        self,
        name: str,
        number: int,
        code: str,
        start_ns: int,
        requests: RequestBatch | None = None,
    ) -> Span | None:
        """A span for a step that begins then; None if nothing takes spans.

        Never raises.

        From any thread.

        Args:
            name: of the span.
            number: -1 for none.
            code: what it is a call of, by ``support/code_names.py``; empty if it is none.
            start_ns: its begin, in Unix nanoseconds.
            requests: those that it serves, each of which gets a span when it has ended.
        """
        target = self._resolver.resolve()
        if target is None:
            return None
        range_attributes = base_attributes(RecordScope.USER_SCOPE, calling_thread())
        attributes = {
            **range_attributes,
            **({STEP_NUMBER: number} if number >= 0 else {}),
            **(code_attributes(code) if code else {}),
        }
        links = requests.links if requests is not None else ()
        span = self._process_context.start_step(
            target, utf8_text(name), attributes, start_ns, links
        )
        if requests is not None:
            requests.begin(span.get_span_context() if span is not None else None, start_ns)
            self._batches.add(requests)
        return span

    def flush(self, timeout_s: float) -> bool:
        """Decide and export all that was written, as a part of its unit where that goes on."""
        with self._lock:
            if self._own.provider_ends:
                self._traces.close_all()
            self._traces.end_closed()
            self._decide(is_idle=True, flushes=True)
        return self._sender.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """End all roots, export, and leave the provider as it was.

        Where the process ends, the provider exports afterwards what its processors have, for as
        long as that takes: ``delivery.py`` says how little of ours that is. No time for a backend
        that is known to be down.
        """
        process_ends = self._process_ends
        if process_ends:
            timeout_s = (
                0.0 if self._delivery.has_failed else min(timeout_s, self._process.exit_timeout_s)
            )
        self._own.remove()
        try:
            with self._lock:
                self._traces.close_all()
                self._put(
                    self._folded(
                        lambda folding: folding.due(self._traces.take_finished(), ends=True)
                    )
                )
                self._put_requests(math.inf)
        finally:  # even if there is no memory for it
            self._sender.close(timeout_s, process_ends)

    def counters(self) -> Mapping[str, int]:
        """The counts of ranges and spans, as ``model/counters.py`` names them."""
        ranges = self._sender.counts()
        spans = self._delivery.counters()
        return {
            **{name: ranges[name] for name in ("recorded", "added", "folded", "unsampled")},
            "exported": spans["exported"] + ranges["exported"],
            "failed": spans["failed"],
            "dropped.queue_full": ranges["queue_full"] + spans.get("dropped.queue_full", 0),
            "dropped.shutdown": ranges["shutdown"] + spans["dropped.shutdown"],
            "dropped.error": ranges["error"],
        }

    def after_fork_in_child(self) -> Sink | None:
        """A fresh sink. Span ids got a new key when the child began."""
        self._spans.start_empty()
        self._own.start_empty()
        self._batches.start_empty()
        fresh = SpansSink(
            *self._arguments, self._delivery.after_fork_in_child(), self._process, self
        )
        fresh._resolver.resolve()  # so that the ranges of the child ask this sink for its spans
        return fresh


def _begins_roots(batch: Batch) -> bool:
    """Whether outermost ranges outside of spans are announced, each of which may get a root."""
    return bool(np.take(are_rootless(batch.contexts), batch.opened.columns["context"]).any())
