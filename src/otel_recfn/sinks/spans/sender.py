"""The sender of decided units, with a thread of its own.

    drain thread ──put──► unit queue, bounded
                 ──► sender thread: spans are made, a chunk at a time ──► delivery

The program comes first: where the queue is full, whole units are dropped and counted, ordinary ones
first; the thread works a quarter of the time while the program runs; and ``flush`` and ``close``
return when their time is up, whatever an exporter does.

A unit becomes spans when it is sent, parents first; until then it is columns. What became of each
range is counted:

    recorded + added = spans that were handed on + exported + folded + folding + unsampled +
    queue_full + shutdown + error

``added`` are spans of no single range: roots, sums, those of requests and of sampled functions, and
ranges that are still open, which come again. ``exported`` are steps whose spans the program's
provider has handed on. ``unsampled`` are ranges of which no span was wanted: by the sampler, by who
suppressed instrumentation, by the hook, or as there is no provider. ``folding`` are those in units
that aren't decided, or wait to be sent; ``queue_full`` those that the queue had no room for,
``shutdown`` those that the end found unsent, ``error`` those of which spans could not be made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.batches.stage import Decided
from otel_recfn.sinks.protocol import NO_MEMORY
from otel_recfn.sinks.spans.delivery import Delivery
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.span_hook import DROPPED, SpanHook
from otel_recfn.sinks.spans.span_target import SpanTarget
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.sinks.spans.sum_attributes import extra_span_attributes
from otel_recfn.sinks.spans.unit_samples import SampledSpan
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.forks import OwnThread, at_work, current_own_thread, resting
from otel_recfn.support.interruptions import ignoring_errors
from otel_recfn.support.logs import log
from otel_recfn.support.request_batch import RequestBatch
from otel_recfn.support.safe_texts import safe_exception

MAX_BYTES = 64 << 20
"""The most bytes of units that wait."""
ROOT_BYTES = 2000
"""The bytes of a root of ours."""
MAX_SHARE = 0.25
"""The share of one processor's time that making and handing on spans may take while the program
runs.
"""
LINGER_S = 0.5
"""The seconds without a unit after which the delivery gets an empty chunk."""
POLL_S = 0.05
"""The seconds between looks, at the end of the process, whether waiting is of use."""

_LOST = ("queue_full", "shutdown", "error")
_NAMES = ("recorded", "added", "exported", "folded", "folding", "unsampled", *_LOST)


class Chunk(NamedTuple):
    """The spans and counts of a part of a unit."""

    spans: Sequence[Any]
    """Spans of the SDK, or encoded ones."""
    counts: Mapping[str, int]
    """The changes of the counts of ranges."""
    dropped: int = 0
    """The number of lost ranges and spans that the first span reports."""


@dataclass(eq=False)
class DecidedUnits:
    """Units that were decided together, to be sent whole or not at all."""

    plan: SpanPlan | None = None
    """The plan of the ranges that are kept, in the order of sending."""
    decided: Decided | None = None
    """The sums of the others; None if there are none."""
    roots: Sequence[StepTrace] = ()
    """The traces of ours whose root spans are sent, with the sums of what was folded directly
    into them.
    """
    ranges: int = 0
    """The number of ranges that they stand for."""
    is_ordinary: bool = False
    """Whether none of them failed or took unusually long: these are dropped first."""
    mapper: SpanMapper | None = None
    """The mapper of ranges that are still open, which come again when they have ended."""
    nbytes: int = 0
    """The bytes that they take while they wait."""
    sums: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Without ``decided``: attributes for what ran in the compilations among the ranges, by
    event id.
    """
    steps: Sequence[ReadableSpan] = ()
    """Spans of steps, which are sent as they are. They are counted as ranges."""
    requests: RequestBatch | None = None
    """The batch that has ended, whose requests get a span each. They are counted as ranges."""
    request_attributes: Mapping[str, Any] = field(default_factory=dict)
    """The attributes that all of these spans have, of the batch's unit."""
    sampled: Sequence[SampledSpan] = ()
    """Spans for functions that samples found in them."""

    def chunks(self, mapper: SpanMapper, size: int, dropped: Callable[[], int]) -> Iterator[Chunk]:
        """The spans, so many at a time, made when they are asked for.

        ``dropped`` says how many ranges and spans were lost since the last report, for the first
        span of a range.
        """
        mapper = self.mapper or mapper
        if self.steps:
            yield Chunk(self.steps, {"folding": -len(self.steps)})
        if self.requests is not None:
            for which in _slices(len(self.requests.requests), size):
                spans = mapper.request_spans(self.requests, which, self.request_attributes)
                yield Chunk(spans, {"folding": -len(spans)})
        for which in _slices(len(self.roots), size):
            traces = self.roots[which]
            folded = sum(trace.folded for trace in traces)
            spans = [mapper.root_span(trace) for trace in traces]
            yield Chunk(spans, {"added": len(traces), "folded": folded, "folding": -folded})
        for which in _slices(len(self.plan.row) if self.plan is not None else 0, size):
            yield self._chunk(mapper, which, dropped())
        for which in _slices(len(self.decided.summaries) if self.decided is not None else 0, size):
            yield self._summaries(mapper, which)
        for which in _slices(len(self.sampled), size):
            spans = mapper.sampled_spans(self.sampled[which])
            yield Chunk(spans, {"added": len(spans)})

    def _summaries(self, mapper: SpanMapper, which: slice) -> Chunk:
        assert self.decided is not None
        span_count = len(self.decided.plan.row)  # which are numbered first
        extra_attributes, folded = extra_span_attributes(
            self.decided, span_count + which.start, span_count + which.stop
        )
        spans = mapper.summaries(
            self.decided,
            which,
            {number - span_count: attributes for number, attributes in extra_attributes.items()},
        )
        return Chunk(spans, {"added": len(spans), "folded": folded, "folding": -folded})

    def _chunk(self, mapper: SpanMapper, which: slice, dropped: int) -> Chunk:
        assert self.plan is not None
        plan = self.plan.part(which)
        extra_attributes = dict[int, Any]()
        folded = 0
        if self.mapper is not None:
            spans = mapper.spans(plan)
            return Chunk(spans, {"added": len(spans)})
        if self.decided is not None:
            extra_attributes, folded = extra_span_attributes(self.decided, which.start, which.stop)
        elif self.sums:
            ids = zip(plan.row.tolist(), plan.batch.event_id[plan.row].tolist(), strict=True)
            extra_attributes = {
                row: self.sums[event_id] for row, event_id in ids if event_id in self.sums
            }
        if dropped:
            row = int(plan.row[0])
            extra_attributes[row] = {**extra_attributes.get(row, {}), DROPPED: dropped}
        spans = mapper.spans(plan, extra_attributes)
        span_count = len(plan.row)
        counts = {
            "folded": folded,
            "folding": -span_count - folded,
            "unsampled": span_count - len(spans),
        }
        return Chunk(spans, counts, dropped)


def roots_alone(traces: Sequence[StepTrace]) -> DecidedUnits:
    """The roots of our traces that are not sent with a unit."""
    return DecidedUnits(roots=traces, nbytes=len(traces) * ROOT_BYTES)


def _slices(end: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, end)) for first in range(0, end, size)]


def unit_queue() -> TaskQueue[DecidedUnits]:
    """The queue of units that wait to be sent.

    They are folded before. When rows waited here they were a thousand times as many as their spans,
    and had to be dropped if an exporter was slow.
    """
    return TaskQueue(MAX_BYTES, attrgetter("nbytes"), attrgetter("is_ordinary"))


class Sender:
    """The sender of one sink. ``recorder_lost`` counts losses."""

    def __init__(
        self,
        resolver: ProviderResolver,
        delivery: Delivery,
        hook: SpanHook | None,
        recorder_lost: Callable[[], int],
    ) -> None:
        self._resolver, self._delivery, self._hook = resolver, delivery, hook
        self._target: SpanTarget | None = None
        self._mapper: SpanMapper | None = None
        """The mapper for the current target."""
        self._recorder_lost = recorder_lost
        self._lost_before = recorder_lost()
        self._reported = 0
        """The number of lost ranges and spans that earlier spans report."""
        self._queue = unit_queue()
        self._thread = OwnThread(self._run, "otel-recfn spans")
        self._lock = threading.RLock()  # reentrant, as a signal handler may ask for the counts
        self._counts = dict.fromkeys(_NAMES, 0)
        self._closed = False
        """Whether nothing is counted or sent any more."""
        self._end_by = float("inf")
        self._logged = False

    def start(self) -> None:
        """Start the thread; if none can be started now, the next units try again."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._log_once(
                "no thread could be had for sending spans; the next ones try again", error
            )

    def count(self, **more: int) -> bool:
        """Add to the counts of ranges and spans, from any thread. False after the end."""
        with self._lock:
            if not self._closed:
                for name, count in more.items():
                    self._counts[name] += count
            return not self._closed

    def counts(self) -> dict[str, int]:
        """The counts of ranges and spans, from any thread."""
        with self._lock:
            return dict(self._counts)

    def put(self, units: DecidedUnits) -> None:
        """Send these units. Their ranges are counted as ``folding`` by now."""
        try:
            if self._thread.ident is None:
                self.start()
            dropped = self._queue.put(units)
        except NO_MEMORY as error:
            self.count(error=units.ranges, folding=-units.ranges)
            self._log_once("there was no memory to send spans; they are counted as lost", error)
            return
        for each in dropped:
            self.count(queue_full=each.ranges, folding=-each.ranges)

    def put_step(self, span: ReadableSpan) -> None:
        """Send the span of a step that has ended. From any thread."""
        if self.count(recorded=1, folding=1):
            self.put(DecidedUnits(steps=[span], ranges=1, nbytes=ROOT_BYTES))

    def put_added(self, units: DecidedUnits) -> None:
        """Send spans of no ranges, which are counted whatever becomes of them."""
        if self.count(added=units.ranges, folding=units.ranges):
            self.put(units)

    def flush(self, timeout_s: float) -> bool:
        """Send what was put, and export; False if the time wasn't enough, or the caller would
        wait for itself.
        """
        if self._thread.ident is None:
            return self._queue.is_empty
        if self._thread.is_current or _is_exporting():
            return False
        flush = self._queue.put_flush(timeout_s)
        return flush is not None and self._queue.wait_for(flush)

    def close(self, timeout_s: float, process_ends: bool) -> None:
        """Send what was put, and export, in so many seconds; the rest is dropped and counted.

        Nothing is waited for where a processor calls, or where the process ends and the backend is
        known to be down.
        """
        self._end_by = time.monotonic() + (0.0 if self._thread.is_current else timeout_s)
        self._queue.end()
        while (
            self._thread.is_alive()
            and self._remaining_time()
            and not (process_ends and self._delivery.has_failed)
        ):
            self._thread.wait_for_end(min(POLL_S, self._remaining_time()))
        with self._lock:
            self._closed = True
            self._counts["shutdown"] += self._counts["folding"]
            self._counts["folding"] = 0
        self._queue.clear()
        self._delivery.remove(process_ends)

    def _remaining_time(self) -> float:
        return max(0.0, self._end_by - time.monotonic())

    def _run(self) -> None:
        while not self._queue.has_ended:
            self._guarded(self._step)
        with at_work():
            self._guarded(lambda: self._delivery.flush(self._remaining_time()))

    def _guarded(self, step: Callable[[], object]) -> None:
        """Do a step. If it fails, what it handled is lost, and the thread goes on."""
        try:
            step()
        except BaseException as error:
            with ignoring_errors():  # there may be no memory for it
                self._log_once("sending spans raised; what was being sent is lost", error)

    def _step(self) -> None:
        waiting = self._queue.next(LINGER_S)
        with at_work():
            if isinstance(waiting, DecidedUnits):
                self._send(waiting)
            elif isinstance(waiting, Flush):
                waiting.do(self._delivery.flush)
            else:
                self._delivery.send(())

    def _send(self, units: DecidedUnits) -> None:
        """Send units; if spans can't be made, the rest of the units is lost."""
        unsent = units.ranges
        try:
            mapper = self._current_mapper()
            began = time.thread_time()
            for chunk in units.chunks(mapper, self._delivery.chunk_size, self._lost_since):
                if not self.count(**chunk.counts):
                    return
                unsent += chunk.counts.get("folding", 0)
                self._delivery.send(chunk.spans)
                self._reported += chunk.dropped
                with resting():
                    self._queue.pause((time.thread_time() - began) * (1 / MAX_SHARE - 1))
                began = time.thread_time()
        # Even an exception of the program's hook or processor that ends threads.
        except BaseException:
            self.count(error=unsent, folding=-unsent)
            raise

    def _current_mapper(self) -> SpanMapper:
        """The mapper for the target that takes spans now; for the last one if nothing does."""
        target = self._resolver.resolve() or self._target
        assert target is not None, "the tracer provider was taken away before any span was sent"
        if target is not self._target or self._mapper is None:
            self._mapper = (
                self._delivery.mapper(target)
                if self._hook is None
                else SpanMapper(target, self._hook)
            )
            self._target = target
        self._delivery.use(target)
        return self._mapper

    def _lost_since(self) -> int:
        """The number of ranges and spans that were lost since a span reported it."""
        delivered = self._delivery.counters()
        lost = (
            sum(self._counts[name] for name in _LOST)
            + sum(delivered.values())
            - delivered["exported"]
        )
        return max(0, lost + self._recorder_lost() - self._lost_before - self._reported)

    def _log_once(self, message: str, error: BaseException) -> None:
        if not self._logged:
            self._logged = True
            log.error("otel-recfn: %s", message, exc_info=safe_exception(error))


class StepSpans(SpanProcessor):
    """The processor of steps' spans where spans of ours don't go through the program's processors.

    They go to the sender as they end.
    """

    def __init__(self, spans: ProgramSpans) -> None:
        self._spans = spans
        self.sender: Sender | None = None
        """The sender of this process; None before there is one."""

    def on_end(self, span: ReadableSpan) -> None:
        """Send a span, unless it isn't sampled, or its step is the parent process's."""
        self._spans.ended(span)
        is_sampled = span.context is not None and span.context.trace_flags.sampled
        if is_sampled and self.sender is not None and self._spans.began_here(span):
            self.sender.put_step(span)


def _is_exporting() -> bool:
    """Whether the calling thread is in the middle of an export, for which a flush would wait:
    processors suppress instrumentation around it.
    """
    return current_own_thread() is None and not is_instrumentation_enabled()
