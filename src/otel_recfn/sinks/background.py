"""Runs a sink on a thread of its own, so that the drain thread never waits for a network.

    write() ──► bounded queue ──► worker thread ──► inner sink
                (WorkQueue)       (Worker), at most a quarter of its time while the program runs (Pace)

The program comes first: the queue drops what doesn't fit, the thread works a share of the time, and ``flush`` and ``close``
return when their time is up, whatever an exporter does; what was left then is counted. Before the first batch after a gap the
inner sink is told of it (``note_gap``), because it missed begins and ends. The same is done where it found no memory for one,
unless it says when it has room (``has_room``): then the batch waits until it has. Where even the queue finds no memory, this
sink says that it has no room.

Shortly before the end of a ``close`` the inner sink is told to give up (``give_up``): of what is left it may write what must
not be missing, which is waited for as long as the worker computes, also when the time is over. In the worker thread, where a
span processor may call them, ``flush`` and ``close`` don't wait for themselves: ``flush`` says that not everything is out, and
what was queued before a ``close`` is finished after it returned.

    rows_received = rows (taken by the inner sink) + queue_dropped + queued + abandoned
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.background_pace import Pace
from otel_recfn.sinks.background_queue import Close, Flush, WorkQueue
from otel_recfn.sinks.background_worker import Worker
from otel_recfn.sinks.paced import ToldOfDrops
from otel_recfn.sinks.protocol import Sink, is_told_of_open_ranges, tell_of_process_end, tells_of_spans, wants_unsampled
from otel_recfn.support.own_thread import OwnThread
from otel_recfn.support.safe_text import safe_exception, safe_text
from otel_recfn.support.thread_time import wait_while_it_computes

log = logging.getLogger("otel_recfn")

MAX_ROWS = 800_000
"""Some 80 MB: what a busy service records in the seconds for which the thread may not get the GIL. A thread that runs operators
without a pause fills a batch of over 200,000 in a quarter of a second."""
MAX_SHARE = 0.25
LOOK_S = 0.05
"""So often it is asked whether waiting is of use, where the process ends."""
TIDYING_S = 0.5
"""So long a worker may take to count what is left, and to remove what it made, where the end has no use for the time that it
was given."""


class BackgroundSink:
    """A sink in front of another that may wait. ``flush`` may be called from any thread, also while another one writes.

    Args:
        sink: the inner sink; used by the worker thread only, but for ``counters``.
        max_rows: rows (and announced begins) that may wait. A larger batch is taken when nothing else waits.
        max_share: of one processor's time, how much the inner sink may take while the program runs.
        start: whether the thread starts now or with the first batch.
        rows_of_a_batch: what a batch that waits takes beside its rows, in rows.
        close_share: of the time that ``close`` is given, how much it may take: others are closed after it.
    """

    flushes_beside_writes = True

    def __init__(
        self,
        sink: Sink,
        max_rows: int = MAX_ROWS,
        *,
        max_share: float = MAX_SHARE,
        start: bool = True,
        rows_of_a_batch: int = 0,
        close_share: float = 1.0,
    ) -> None:
        self.name = sink.name
        self._inner, self._max_rows, self._max_share = sink, max_rows, max_share
        self._rows_of_a_batch, self._close_share = rows_of_a_batch, close_share
        self._queue = WorkQueue(max_rows, rows_of_a_batch)
        if isinstance(sink, ToldOfDrops):
            sink.tell_dropped(self._dropped)
        self._pace = Pace(max_share, self._queue.is_filling)
        self._worker = Worker(sink, self._queue, self._pace)
        self._thread = OwnThread(self._worker.run, f"otel-recfn {self.name}")
        self._most_at_the_end = math.inf
        self._process_ends = False
        self._drained_ns = 0
        self._told = False
        """Of the worker's error, whoever wrote or closed."""
        if start:
            self.start()

    def start(self) -> None:
        """Start the thread; else the first batch does."""
        with contextlib.suppress(RuntimeError):  # no more threads here: tried again, and told, with the first batch
            self._thread.start()

    def has_room(self) -> bool:
        """Whether there is memory for queueing batches."""
        return self._queue.has_room()

    def write(self, batch: Batch) -> None:
        """Queue a batch, or drop it.

        Raises:
            MemoryError: nothing of it was taken.
            Exception: what the inner sink raised; the session closes a sink that raises.
        """
        if self._worker.error is not None:
            self._told = True
            raise self._worker.error
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put_batch(batch)
        try:
            if self._queue.is_filling():
                self._pace.go_on()
        except OUT_OF_MEMORY:  # the batch was taken, and the rest ends by itself
            pass

    def write_open(self, ranges: Batch) -> None:
        """Queue what an inner sink is told of open ranges, unless it has yet to take what it was told before."""
        if is_told_of_open_ranges(self._inner) and self._thread.ident is not None:
            self._queue.put_open(ranges)

    def note_drained(self, drained_ns: int) -> None:
        """The inner sink is told it at the next flush, behind what is queued now."""
        self._drained_ns = max(self._drained_ns, drained_ns)

    def flush(self, timeout_s: float) -> bool:
        """Let the inner sink finish what is queued, and flush; False when the time wasn't enough."""
        if self._thread is threading.current_thread():
            return False
        request = Flush(time.monotonic() + timeout_s, self._drained_ns)
        if not self._put(request):
            return self._worker.error is None and not self._thread.is_alive() and self._left() == 0
        self._pace.hurry_up(+1)
        try:
            request.wait(timeout_s)
        finally:
            self._pace.hurry_up(-1)
        return request.flushed

    def process_ends(self, timeout_s: float) -> float:
        """``close`` follows, and takes no longer than the inner sink has a use for."""
        self._process_ends, self._most_at_the_end = True, tell_of_process_end(self._inner, timeout_s)
        return self._most_at_the_end

    def close(self, timeout_s: float) -> None:
        """Finish, or give up after ``timeout_s`` seconds and leave the daemon thread to its exporter."""
        allowed_s = self._close_share * timeout_s
        last_by, timeout_s = time.monotonic() + allowed_s, min(allowed_s, self._most_at_the_end)
        self._pace.end_in(timeout_s)
        started = self._put(Close())
        if self._thread is threading.current_thread():
            return
        if started:
            self._wait_for_end(last_by)
        elif not self._queue.over and self._worker.error is None:
            self._worker.release()
            self._inner.close(timeout_s)  # nothing was ever written: it has nothing to wait for
        self._queue.end()
        self._pace.end_now()
        self._tell_error()

    def _wait_for_end(self, last_by: float) -> None:
        """Of the worker; near the end of the time also for an exporter that it waits for, and no longer."""
        for seconds in (self._pace.time_to_supersede, self._pace.time_left):
            self._wait_while_it_is_of_use(seconds)
            if not self._thread.is_alive():
                return
            if self._worker.supersede():
                break
        else:
            if not self._worker.gives_up:
                self._thread.wait_for_end(min(TIDYING_S, max(0.0, last_by - time.monotonic())))
                return
            wait_while_it_computes(self._worker.worked_s, self._writes_no_more)
        if self._worker.is_superseded:  # it may be back from its exporter, and hand on the rest
            wait_while_it_computes(self._worker.worked_s, self._has_ended, 1)

    def _writes_no_more(self, timeout_s: float) -> bool:
        """The worker, which writes nothing any more but what must not be missing; for an exporter it is not waited at all."""
        return self._has_ended(timeout_s) or self._worker.supersede()

    def _has_ended(self, timeout_s: float) -> bool:
        self._thread.wait_for_end(timeout_s)
        return not self._thread.is_alive()

    def _wait_while_it_is_of_use(self, seconds: Callable[[], float]) -> None:
        while self._process_ends and seconds() > LOOK_S and self._thread.is_alive():
            if self._worker.is_hopeless():
                self._pace.end_in(0.0)
            self._thread.wait_for_end(min(LOOK_S, seconds()))
        self._thread.wait_for_end(seconds())

    def _tell_error(self) -> None:
        """Of the inner sink, where no write came after it that could have raised it."""
        error = self._worker.error
        if error is not None and not self._told:
            self._told = True
            unexpected = safe_exception(error) if not isinstance(error, OSError) else None  # a full disk needs no traceback
            text = "the sink %r failed, and what it had not taken is lost: %s"
            log.error(text, self.name, safe_text(repr(error)), exc_info=unexpected)

    @property
    def wants_unsampled(self) -> bool:
        """As the inner sink."""
        return wants_unsampled(self._inner)

    @property
    def tells_of_spans(self) -> bool:
        """As the inner sink."""
        return tells_of_spans(self._inner)

    @property
    def losses(self) -> tuple[str, ...]:
        """The inner sink's, and what never reached it."""
        return (*getattr(self._inner, "losses", ()), "queue_dropped", "abandoned")

    def counters(self) -> Mapping[str, int]:
        """The inner sink's, and what became of the rows that it never saw."""
        left = self._left()
        given_up = self._queue.over or self._worker.error is not None
        own = {
            "rows_received": self._queue.received,
            "queue_dropped": self._queue.dropped,
            "queued": 0 if given_up else left,
            "abandoned": left if given_up else 0,
        }
        return {**self._inner.counters(), **own}

    def after_fork_in_child(self) -> Sink | None:
        """The same around the inner sink's successor; its thread starts with its first batch.

        This one is over; the forking thread may be in the middle of a call of it, so it gets locks that nobody holds.
        """
        self._queue.end_in_child()
        self._pace.end_in_child()
        inner = self._inner.after_fork_in_child()
        if inner is None:
            return None
        return BackgroundSink(
            inner,
            self._max_rows,
            max_share=self._max_share,
            start=False,
            rows_of_a_batch=self._rows_of_a_batch,
            close_share=self._close_share,
        )

    def _left(self) -> int:
        """Rows that the inner sink hasn't taken; a sink that counts ``rows`` itself is precise within a batch."""
        return max(0, self._queue.received - self._queue.dropped - self._worker.inner_rows())

    def _dropped(self) -> int:
        return self._queue.dropped

    def _put(self, task: Flush | Close) -> bool:
        """False if no thread will do it."""
        return self._thread.is_alive() and self._queue.put(task)
