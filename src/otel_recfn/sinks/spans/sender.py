"""Sends decided units, on a thread of its own.

    drain thread ──put──► unit queue, bounded ──► sender thread: spans are made, a chunk at a time ──► delivery

The program comes first: where the queue is full, whole units are dropped and counted, ordinary ones first; the thread works a
quarter of the time while the program runs; and ``flush`` and ``close`` return when their time is up, whatever an exporter does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.spans.accounts import Accounts
from otel_recfn.sinks.spans.current_target import CurrentTarget
from otel_recfn.sinks.spans.decided import DecidedUnits, Made, Piece
from otel_recfn.sinks.spans.delivery import Delivery
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.own_thread import OwnThread, at_work, resting
from otel_recfn.support.safe_text import safe_exception

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
                self._hand_on(made)
                self._rest(time.thread_time() - began)
        except BaseException:  # also one of the program's hook or processor
            self._accounts.add(error=left, folding=-left)
            raise

    def _made(self, piece: Piece, mapper: SpanMapper, first: int) -> Made:
        """A chunk. Its first span of a range tells of what was lost since that was told last."""
        lost = self._lost()
        made = piece.make(mapper, first, min(first + self._delivery.chunk_size, len(piece)), max(0, lost - self._told))
        if made.plan is not None and len(made.plan.row):
            self._told = max(lost, self._told)
        return made

    def _hand_on(self, made: Made) -> None:
        self._delivery.send(made.spans)
        if self._sent is not None and made.plan is not None:
            self._sent(made.plan)

    def _rest(self, worked_s: float) -> None:
        if not self._queue.is_filling:
            with resting():
                self._hurries.wait(worked_s * (1 / MAX_SHARE - 1))

    def _lost(self) -> int:
        """Ranges and spans that were lost in this process."""
        return self._recorder_lost() - self._lost_before + self._accounts.lost + self._delivery.lost

    def _log_once(self, message: str, error: BaseException) -> None:
        if not self._logged:
            self._logged = True
            log.error("otel-recfn: %s", message, exc_info=safe_exception(error))
