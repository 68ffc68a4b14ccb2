"""The sink of spans: rows become finished spans at a tracer provider's span processors.

    drain thread:   write(batch) ──► StepTraces (roots of ours) ──► Folding ──► decided units
    sender thread:  decided units ──► SpanMapper ──► processors, in chunks that they don't drop ──► exporters

Whose child a range is: the range around it; at top level the span that was current when it began; else a root of ours.
A span that isn't sampled, and suppressed instrumentation, give no spans.

No row is dropped on its way to its unit. A unit is sent whole, parents first, or not at all; every row counts once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from opentelemetry.trace import Span, SpanContext, TracerProvider

from otel_recfn.batches.stage import Fate
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.protocol import NO_MEMORY, Sink
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import Delivery, ProviderCalls, SpanDelivery
from otel_recfn.sinks.spans.folding import EveryRange, Folding, OpenTraces
from otel_recfn.sinks.spans.mapping import code_attributes
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.sender import DecidedUnits, Sender
from otel_recfn.sinks.spans.span_hook import Hook, SpanHook
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.surroundings import (
    FindsWorker,
    ProgramSpans,
    PromisedTraces,
    Surroundings,
)

log = logging.getLogger("otel_recfn")

REST_SECONDS = 1.5
"""The seconds without a row after which units below spans whose end can't be seen are decided."""
Result = TypeVar("Result")


class Process(NamedTuple):
    """The answers that a sink needs from its process; the defaults stand for no answer."""

    recorder_lost: Callable[[], int] = lambda: 0
    """The number of ranges that the recorder has lost in all."""
    flush: Callable[[float], bool] = lambda _timeout_s: True
    """A function that delivers what was recorded within seconds, before the provider's ``force_flush`` and ``shutdown``."""
    ends: Callable[[], bool] = lambda: False
    """Whether the process ends."""
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
        self._given, self._volume, self._process = (
            (tracer_provider, roots_per_second, volume, hook),
            volume,
            process,
        )
        self._spans: ProgramSpans = parent._spans if parent is not None else ProgramSpans()
        self._promised: PromisedTraces = (
            parent._promised if parent is not None else PromisedTraces()
        )
        self._surroundings = Surroundings(self._spans, process.find_worker)
        self._traces = StepTraces(roots_per_second, self._surroundings, self._promised)
        self._folding: Folding | EveryRange | None = self._new_folding()
        """The folding; None after a step of it raised: the next one begins without any unit."""
        self._undecided = 0
        """The ranges in units that aren't decided."""
        self._delivery = delivery or SpanDelivery()
        self._provider_calls = ProviderCalls(process.flush)
        self._resolver = ProviderResolver(
            tracer_provider, self._delivery.provider, self._provider_calls.watch
        )
        span_hook = SpanHook(hook) if hook is not None else None
        self._sender = Sender(self._resolver, self._delivery, span_hook, process.recorder_lost)
        self._open_traces = OpenTraces(self._traces, span_hook, volume)
        self._written_at = time.monotonic()
        self._logged_memory = False

    def _new_folding(self) -> Folding | EveryRange:
        most = self._volume.of_unit
        if most is None:
            return EveryRange(torch_names=self._volume.torch_names)
        return Folding(most, self._volume, self._spans, self._traces)

    def start(self) -> None:
        """Start the sender's thread, and look for a provider, which the first unit and the first range do otherwise."""
        self._sender.start()
        self._resolver.resolve()

    def write(self, batch: Batch) -> None:
        """Fold a batch into its units, and send those that are decided now."""
        with self._lock:
            if len(batch) or batch.opened:
                self._written_at = time.monotonic()
                self._add(batch)
            self._traces.close_idle(batch.drained_ns)
            try:
                self._decide(
                    batch.drained_ns, rests=time.monotonic() - self._written_at > REST_SECONDS
                )
                if batch.long_open is not None:
                    self._send_open(batch.long_open)
            except NO_MEMORY:  # the batch was taken, so it isn't missed; what is lost was counted
                if not self._logged_memory:
                    self._logged_memory = True
                    log.error(
                        "otel-recfn: there was no memory to decide which ranges become spans; they are counted as lost"
                    )

    def _add(self, batch: Batch) -> None:
        target = self._resolver.resolve()
        if target is None:
            self._sender.count(recorded=len(batch), unsampled=len(batch))
            return
        batch = self._surroundings.without_inherited(batch)
        roots = self._traces.advance(batch, target)
        added, decided = self._folded(lambda folding: folding.add(batch, roots))
        ranges, unsampled = (
            sum(added.fates[Fate.SUPPRESSED :]),
            added.fates[Fate.SUPPRESSED] + added.fates[Fate.UNSAMPLED],
        )
        folded = ranges - unsampled - added.planned
        self._sender.count(
            recorded=ranges, unsampled=unsampled, folded=folded, folding=added.planned
        )
        self._undecided += added.planned
        self._put(decided)

    def _decide(self, drained_ns: int = 0, *, rests: bool) -> None:
        """Send the units to which nothing more can come; if it ``rests``, also those below spans whose end can't be seen."""
        self._put(
            self._folded(
                lambda folding: folding.due(self._traces.take_finished(), drained_ns, rests=rests)
            )
        )

    def _send_open(self, ranges: Batch) -> None:
        """Hand on spans of the ranges that are open for long, each once."""
        target = self._resolver.resolve()
        if target is not None:
            self._put(self._open_traces.new(self._surroundings.without_inherited(ranges), target))

    def _folded(self, step: Callable[[Folding | EveryRange], Result]) -> Result:
        """The result of a step of folding. If it raises, as without memory, what is undecided is lost and counted.

        Also if a signal handler raises in it: afterwards the native stage and what waits here may not agree.
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

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that a range begins below this span of the program's. From any thread."""
        self._resolver.resolve()  # so that a provider that is set late is found before the program flushes it
        self._spans.saw(trace_id, span_id, span)

    def has_target(self) -> bool:
        """Whether anything takes spans now. From any thread."""
        return self._resolver.resolve() is not None

    def lacks_provider(self) -> bool:
        """Whether nothing takes spans because the program has set no tracer provider, or not yet. From any thread."""
        return self._resolver.lacks_provider

    def trace_of(self, root: int) -> SpanContext | None:
        """The root span of ours above an outermost range without a span around it; None without one. From any thread."""
        target = self._resolver.resolve()
        if target is None:
            return None
        name = self._surroundings.name(
            ""
        )  # the sampler sees no more, as the name of a thread costs a lock
        return self._promised.trace_of(root, partial(self._surroundings.start_root, target, name))

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        """Whether the span is current, but not around the ranges of this process. From any thread."""
        return self._surroundings.is_outside(trace_id, span_id)

    def start_step(self, name: str, number: int, code: str) -> Span | None:
        """A span for a step that begins now, below the current span; None if nothing takes spans. Never raises.

        From any thread. ``code``: what it is a call of, as a text of ``support/texts.py``; empty if it is none.
        """
        attributes = {"recfn.step.number": number} | (code_attributes(code) if code else {})
        target = self._resolver.resolve()
        return target.start_span(name, attributes) if target is not None else None

    def flush(self, timeout_s: float) -> bool:
        """Decide and export. Units that may still grow stay open, unless the provider is being shut down."""
        with self._lock:
            if self._provider_calls.provider_ends:
                self._traces.close_all()
            self._decide(rests=True)
        return self._sender.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """End all roots, export, and leave the provider as it was.

        Where the process ends, the provider exports afterwards what is queued, for as long as that takes. No time for a backend
        that is known to be down: all would be dropped anyway.
        """
        process_ends = self._process.ends()
        if process_ends:
            timeout_s = (
                0.0 if self._delivery.has_failed else min(timeout_s, self._process.exit_timeout_s)
            )
        self._provider_calls.remove()
        try:
            with self._lock:
                self._traces.close_all()
                self._put(
                    self._folded(
                        lambda folding: folding.due(self._traces.take_finished(), ends=True)
                    )
                )
        finally:  # even if there is no memory for it
            self._sender.close(timeout_s, process_ends)

    def counters(self) -> Mapping[str, int]:
        """The counts of ranges and spans, as ``model/counters.py`` names them."""
        ranges, spans = self._sender.counts(), self._delivery.counters()
        return {
            **{name: ranges[name] for name in ("recorded", "added", "folded", "unsampled")},
            "exported": spans["exported"],
            "failed": spans["failed"],
            "dropped.queue_full": ranges["queue_full"] + spans.get("dropped.queue_full", 0),
            "dropped.shutdown": ranges["shutdown"] + spans["dropped.shutdown"],
            "dropped.error": ranges["error"],
        }

    def after_fork_in_child(self) -> Sink | None:
        """A fresh sink. Span ids got a new key when the child began."""
        self._provider_calls.remove()
        self._spans.start_empty()
        fresh = SpansSink(*self._given, self._delivery.after_fork_in_child(), self._process, self)
        fresh._resolver.resolve()  # so that the ranges of the child ask this sink for its spans
        return fresh
