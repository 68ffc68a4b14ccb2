"""Sends decided units, on a thread of its own.

    drain thread ──put──► unit queue, bounded ──► sender thread: spans are made, a chunk at a time ──► delivery

The program comes first: where the queue is full, whole units are dropped and counted, ordinary ones first; the thread works a
quarter of the time while the program runs; and ``flush`` and ``close`` return when their time is up, whatever an exporter does.

A unit is made into spans where it is sent, parents first; until then it is columns. What became of each range is counted:

    recorded + added = spans that were handed on + folded + folding + unsampled + queue_full + shutdown + error

``added`` are spans of no single range: roots, sums, ranges that were told while they were open, whatever becomes of their rows.
``unsampled`` are ranges of which no span was wanted: by the sampler, by who suppressed instrumentation, by the hook, or as
there is no provider. ``folding`` are those in units that aren't decided, or wait to be sent; ``queue_full`` those that the
queue had no room for, ``shutdown`` those that the end found unsent, ``error`` those of which spans could not be made.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.spans.delivery import Delivery, WayOut
from otel_recfn.sinks.spans.mapping import DROPPED, SpanMapper, Summaries, ToldOfKept
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.span_hook import Hook, HookedMapper, SpanHook, part_that_was_made
from otel_recfn.sinks.spans.step_traces import StepTrace
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.own_thread import OwnThread, at_work, resting
from otel_recfn.support.safe_text import safe_exception

_LOST = ("queue_full", "shutdown", "error")
_NAMES = ("recorded", "added", "folded", "folding", "unsampled", *_LOST)


class Accounts:
    """Of one sink. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may ask for the counts
        self._counts = dict.fromkeys(_NAMES, 0)
        self._closed = False

    def add(self, **more: int) -> bool:
        """Count so many more. False where the accounts are closed: nothing is counted, nor to be sent, any more."""
        with self._lock:
            if self._closed:
                return False
            for name, count in more.items():
                self._counts[name] += count
            return True

    def close(self) -> None:
        """What is unsent isn't sent any more."""
        with self._lock:
            self._closed = True
            self._counts["shutdown"] += self._counts["folding"]
            self._counts["folding"] = 0

    @property
    def lost(self) -> int:
        """Ranges that never became a part of a span that was handed on, though they should."""
        with self._lock:
            return sum(self._counts[name] for name in _LOST)

    def counts(self) -> dict[str, int]:
        """All of them."""
        with self._lock:
            return dict(self._counts)


ROOT_BYTES = 2000
"""What is known of a trace of ours takes so many."""


class Made(NamedTuple):
    """What was made of a part of a unit."""

    spans: Sequence[Any]
    """Of the SDK, or encoded ones."""
    counts: Mapping[str, int]
    """See ``Accounts``."""
    plan: SpanPlan | None = None
    """Of those spans that are of ranges."""


class Piece(Protocol):
    """Spans of one kind; its length is how many."""

    def __len__(self) -> int: ...

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """The spans of this part. A first one that is of a range tells of so many ``dropped`` ones."""


@dataclass(eq=False)
class DecidedUnits:
    """Units that were decided together, to be sent whole or not at all."""

    pieces: Sequence[Piece]
    ranges: int
    """That they tell of."""
    nbytes: int
    """What they take in memory while they wait."""
    is_ordinary: bool = False
    """None of them failed or took unusually long: where not all can be sent, these go first."""

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def chunks(self, size: int) -> Iterator[tuple[Piece, int]]:
        """Each piece with the first of each ``size`` of its spans."""
        for piece in self.pieces:
            for first in range(0, len(piece), size):
                yield piece, first


@dataclass(eq=False)
class RootSpans:
    """The roots of traces of ours."""

    traces: Sequence[StepTrace]
    """What was folded directly into one is noted there."""

    def __len__(self) -> int:
        return len(self.traces)

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """See Piece."""
        traces = self.traces[first:last]
        folded = sum(trace.folded_ranges for trace in traces)
        spans = [mapper.root_span(trace) for trace in traces]
        return Made(spans, {"added": len(traces), "folded": folded, "folding": -folded})


@dataclass(eq=False)
class KeptSpans:
    """The spans of ranges that were kept."""

    plan: SpanPlan
    """Of these ranges alone, in the order in which they go out."""
    told: ToldOfKept | None = None
    """What they say of folded ones; None: nothing."""
    folded: NDArray[np.int64] | None = None
    """How many each tells of; None: none."""

    def __len__(self) -> int:
        return len(self.plan.row)

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """See Piece."""
        plan = self.plan.part(slice(first, last))
        told = self.told.of(plan.row) if self.told is not None else {}
        if dropped:
            row = int(plan.row[0])
            told = {**told, row: {**told.get(row, {}), DROPPED: dropped}}
        spans = mapper.spans(plan, told)
        kept, folded = last - first, int(self.folded[first:last].sum()) if self.folded is not None else 0
        counts = {"folded": folded, "folding": -kept - folded, "unsampled": kept - len(spans)}
        return Made(spans, counts, plan if len(spans) == kept else part_that_was_made(plan, spans))


@dataclass(eq=False)
class SummarySpans:
    """Spans for folded ranges."""

    summaries: Summaries
    """All of the units that were decided together."""
    begin: int
    end: int
    """Which of them."""

    def __len__(self) -> int:
        return self.end - self.begin

    def make(self, mapper: SpanMapper, first: int, last: int, dropped: int) -> Made:
        """See Piece."""
        part = slice(self.begin + first, self.begin + last)
        spans, folded = mapper.summaries(self.summaries.make(part)), self.summaries.folded(part)
        return Made(spans, {"added": len(spans), "folded": folded, "folding": -folded})


def roots_alone(finished: Sequence[StepTrace], sent: Iterable[StepTrace]) -> list[DecidedUnits]:
    """The roots of finished traces that are not sent with a unit."""
    with_units = set(sent)
    others = [trace for trace in finished if trace not in with_units]
    return [DecidedUnits([RootSpans(others)], 0, len(others) * ROOT_BYTES)] if others else []


class CurrentTarget:
    """Of one sink.

    Args:
        resolver: tells what takes spans now, if anything does.
        way_out: how spans leave.
        delivery: is told of the target.
        hook: the program's; None where it has none.
    """

    def __init__(self, resolver: ProviderResolver, way_out: WayOut, delivery: Delivery, hook: Hook | None) -> None:
        self._resolver = resolver
        self._way_out, self._delivery = way_out, delivery
        self.hook = SpanHook(hook) if hook is not None else None
        """The program's, which is called for the spans of whatever target there is."""
        self._used: Sequence[object] = ()
        """The target that the delivery was told of last, and its parts."""
        self._mapper: SpanMapper | None = None

    def use(self) -> SpanMapper:
        """What makes spans for the target, which gets them from now on; for the last one where nothing takes spans now.

        Raises:
            RuntimeError: there has never been one.
        """
        target = self._resolver.resolve()
        if target is not None:
            try:
                now = [target, *target.parts()]
                if len(now) != len(self._used) or not all(map(is_, now, self._used)):
                    self._delivery.use(target)
                    self._mapper = self._way_out.mapper(target) if self.hook is None else HookedMapper(target, self.hook)
                    self._used = now
            except Exception:  # of a span processor or an exporter that says what it is
                self._resolver.tell_once("the tracer provider raised; spans go where they went before")
        if self._mapper is None:
            raise RuntimeError("the tracer provider was taken away before any span was sent")
        return self._mapper


log = logging.getLogger("otel_recfn")

MOST_BYTES = 64 << 20
"""Of units that wait."""
MAX_SHARE = 0.25
"""Of one processor's time, how much making and handing on spans may take while the program runs."""
LINGER_S = 0.5
"""After so long without a unit the delivery is told that nothing comes."""
LOOK_S = 0.05
"""So often it is asked at the end of the process whether waiting is of use."""


def unit_queue() -> TaskQueue[DecidedUnits]:
    """What waits to be sent."""
    return TaskQueue(MOST_BYTES, attrgetter("nbytes"), attrgetter("is_ordinary"))


class Sender:
    """Of one sink.

    Args:
        target: where spans go at present.
        delivery: hands them on.
        accounts: what becomes of ranges.
        sent: is given each plan whose spans have been handed on; None for nobody.
        recorder_lost: ranges that the recorder has lost in all.
    """

    def __init__(
        self,
        target: CurrentTarget,
        delivery: Delivery,
        accounts: Accounts,
        sent: Callable[[SpanPlan], None] | None,
        recorder_lost: Callable[[], int],
    ) -> None:
        self._target, self._delivery, self._accounts, self._sent = target, delivery, accounts, sent
        self._recorder_lost, self._lost_before = recorder_lost, recorder_lost()
        self._told = 0
        """Of how many lost ranges and spans earlier spans tell."""
        self._queue = unit_queue()
        self._thread = OwnThread(self._run, "otel-recfn spans")
        self._lock = threading.RLock()
        self._waiting = 0
        """How many wait for what is queued."""
        self._hurries = threading.Event()
        """Somebody does."""
        self._end_by = float("inf")
        self._process_ends = self._finishes_itself = False
        self._logged = False

    def start(self) -> None:
        """Start the thread, if it isn't; where there can be none now, the next units try again."""
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:
                self._log_once("no thread could be had for sending spans; the next ones try again", error)

    def put(self, units: DecidedUnits) -> None:
        """Send these. Their ranges are counted as ``folding`` by now."""
        self.start()
        for dropped in self._queue.put(units):
            self._accounts.add(queue_full=dropped.ranges, folding=-dropped.ranges)

    def flush(self, timeout_s: float) -> bool:
        """Send what was put, and export; False where the time wasn't enough, or it would wait for itself."""
        if self._thread.ident is None:
            return self._queue.is_empty
        if self._would_wait_for_itself():
            return False
        with self._hurrying():
            flush = self._queue.put_flush(timeout_s)
            return flush is not None and flush.wait()

    @contextlib.contextmanager
    def _hurrying(self) -> Iterator[None]:
        """The thread doesn't rest meanwhile."""
        with self._lock:
            self._waiting += 1
            self._hurries.set()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._hurries.clear()

    def close(self, timeout_s: float, process_ends: bool) -> None:
        """Send what was put, and export, in so many seconds; the rest is dropped and counted.

        Where the process ends, a backend that is known to be down is not waited for. Where a processor or an exporter calls,
        the sender's thread goes on, and is not waited for.
        """
        self._end_by = time.monotonic() + timeout_s
        self._process_ends = process_ends
        self._finishes_itself = self._would_wait_for_itself()
        self._queue.end()
        if self._finishes_itself:
            return
        with self._hurrying():
            while self._thread.is_alive() and self._time_left() and not (process_ends and self._delivery.has_failed):
                self._thread.wait_for_end(min(LOOK_S, self._time_left()))
        self._finish()

    def _finish(self) -> None:
        self._accounts.close()
        self._queue.clear()
        self._delivery.remove(self._process_ends)

    def _would_wait_for_itself(self) -> bool:
        """Where a processor or an exporter of the program's calls."""
        return self._thread is threading.current_thread() or self._delivery.exports_here

    def _time_left(self) -> float:
        return max(0.0, self._end_by - time.monotonic())

    def _run(self) -> None:
        with suppress_instrumentation():
            while not self._queue.has_ended:
                self._guarded(self._step)
            with at_work():
                self._guarded(lambda: self._delivery.flush(self._time_left()))
                if self._finishes_itself:
                    self._guarded(self._finish)

    def _guarded(self, step: Callable[[], object]) -> None:
        """A failed step costs what it handled, whatever it raised: the thread is none of the program's, and goes on."""
        try:
            step()
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._log_once("sending spans raised; what was being sent is lost", error)

    def _step(self) -> None:
        waiting = self._queue.next(LINGER_S)
        with at_work():
            if isinstance(waiting, DecidedUnits):
                self._send(waiting)
            elif isinstance(waiting, Flush):
                waiting.do(self._delivery.flush)
            else:
                self._delivery.idle()

    def _send(self, units: DecidedUnits) -> None:
        """Send units; where spans can't be made, the rest of them is lost."""
        left = units.ranges
        try:
            mapper = self._target.use()
            for piece, first in units.chunks(self._delivery.chunk_size):
                began = time.thread_time()
                made = self._made(piece, mapper, first)
                self._delivery.make_room(len(made.spans))
                if not self._accounts.add(**made.counts):
                    return
                left += made.counts.get("folding", 0)
                self._delivery.send(made.spans)
                if self._sent is not None and made.plan is not None:
                    self._sent(made.plan)
                if not self._queue.is_filling:
                    with resting():
                        self._hurries.wait((time.thread_time() - began) * (1 / MAX_SHARE - 1))
        except BaseException:  # also one of the program's hook or processor
            self._accounts.add(error=left, folding=-left)
            raise

    def _made(self, piece: Piece, mapper: SpanMapper, first: int) -> Made:
        """A chunk. Its first span of a range tells of what was lost since that was told last."""
        lost = self._recorder_lost() - self._lost_before + self._accounts.lost + self._delivery.lost
        made = piece.make(mapper, first, min(first + self._delivery.chunk_size, len(piece)), max(0, lost - self._told))
        if made.plan is not None and len(made.plan.row):
            self._told = max(lost, self._told)
        return made

    def _log_once(self, message: str, error: BaseException) -> None:
        if not self._logged:
            self._logged = True
            log.error("otel-recfn: %s", message, exc_info=safe_exception(error))
