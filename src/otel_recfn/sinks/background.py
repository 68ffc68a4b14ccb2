"""Runs a sink on a thread of its own, so that the drain thread never waits for a network.

    write() ──► bounded queue ──► worker thread ──► inner sink
                (WorkQueue)       at most a quarter of its time while the program runs (Pace)

The program comes first: the queue drops what doesn't fit, the thread works a share of the time, and ``flush`` and ``close``
return when their time is up, whatever an exporter does; what was left then is counted. Before the first batch after a gap the
inner sink is told of it (``note_gap``), because it missed begins and ends.

A batch for which the inner sink finds no memory is dropped and counted, and the next one comes. Where it raises anything else,
the work ends, and the next ``write`` raises that. In the worker thread, where a span processor may call them, ``flush`` and
``close`` don't wait for themselves: ``flush`` says that not everything is out, and what was queued before a ``close`` is
finished after it returned.

    rows_received = rows (taken by the inner sink) + queue_dropped + queued + abandoned
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Mapping

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.background_pace import GivenUp, Pace
from otel_recfn.sinks.background_queue import Close, Flush, Idle, Task, WorkQueue, Write, WriteOpen
from otel_recfn.sinks.paced import PacedSink, ToldOfDrops, ToldOfGaps
from otel_recfn.sinks.protocol import (
    Sink,
    is_told_of_open_ranges,
    tell_of_drain,
    tell_of_process_end,
    tells_of_spans,
    wants_unsampled,
)
from otel_recfn.support.own_thread import OwnThread, at_work
from otel_recfn.support.safe_text import safe_exception, safe_text

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
        self._pace = Pace(max_share, self._queue.is_filling)
        self._paced = sink if isinstance(sink, PacedSink) else None
        if self._paced is not None:
            self._paced.set_pace(self._pace)
            self._paced.set_backlog(self._queue.has_batch)
            self._paced.set_dropped(self._dropped, lambda: self._queue.dropped_at)
        if isinstance(sink, ToldOfDrops):
            sink.tell_dropped(self._dropped)
        self._thread = OwnThread(self._run, f"otel-recfn {self.name}")
        self._written = self._finished = 0
        """Rows of the batches that the inner sink took; of those that it was given, whatever became of them."""
        self._most_at_the_end = math.inf
        self._process_ends = False
        self._drained_ns = 0
        self._error: Exception | SystemExit | None = None
        """What the inner sink raised: the work has ended with it."""
        self._has_missed = False
        """The inner sink, for want of memory, since it was told of a gap last."""
        self._told_error = self._told_of_memory = False
        if start:
            self.start()

    def start(self) -> None:
        """Start the thread; else the first batch does."""
        with contextlib.suppress(RuntimeError):  # no more threads here: tried again, and told, with the first batch
            self._thread.start()

    def write(self, batch: Batch) -> None:
        """Queue a batch, or drop it.

        Raises:
            Exception: what the inner sink raised; the session closes a sink that raises.
        """
        if self._error is not None:
            self._told_error = True
            raise self._error
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put_batch(batch)
        if self._queue.is_filling():
            self._pace.go_on()

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
            return self._error is None and not self._thread.is_alive() and self._left() == 0
        self._pace.hurry_up(+1)
        try:
            request.done.wait(min(max(0.0, timeout_s), threading.TIMEOUT_MAX))
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
        elif not self._queue.over and self._error is None:
            self._inner.close(timeout_s)  # nothing was ever written: it has nothing to wait for
        self._queue.end()
        self._pace.end_now()
        self._tell_error()

    def _wait_for_end(self, last_by: float) -> None:
        """Of the worker, for as long as it may take, and is of use."""
        while self._process_ends and self._pace.time_left() > LOOK_S and self._thread.is_alive():
            if self._paced is not None and self._paced.is_hopeless():
                self._pace.end_now()
            self._thread.wait_for_end(min(LOOK_S, self._pace.time_left()))
        self._thread.wait_for_end(self._pace.time_left())
        if self._thread.is_alive():
            self._pace.end_now()
            if self._paced is not None:
                self._paced.give_up()
            self._thread.wait_for_end(min(TIDYING_S, max(0.0, last_by - time.monotonic())))

    def _run(self) -> None:
        """In the thread: until told to close, the time is over, or the inner sink raises."""
        with suppress_instrumentation():
            try:
                self._work()
            except GivenUp:
                pass
            except BaseException as error:  # of an exporter that exits, say: the program, whose thread this isn't, goes on
                self._error = _ordinary(error)
                self._pace.end_now()
            self._queue.end()
            with at_work():
                self._close_inner()

    def _work(self) -> None:
        while True:
            try:
                task = self._queue.next()
                if isinstance(task, Close):
                    return
                self._do(task)
                self._pace()
            except MemoryError:  # for waiting, say
                self._tell_of_memory()

    def _do(self, task: Task) -> None:
        try:
            with at_work():
                self._hand(task)
        except MemoryError:
            self._has_missed = True
            self._tell_of_memory()
        finally:
            if isinstance(task, Flush):
                task.done.set()
        if isinstance(task, Write):
            self._finished += len(task.batch)
            self._queue.written(task)

    def _hand(self, task: Task) -> None:
        if isinstance(task, Write):
            if (task.after_gap or self._has_missed) and isinstance(self._inner, ToldOfGaps):
                self._inner.note_gap()
                self._has_missed = False
            self._inner.write(task.batch)
            self._written += len(task.batch)
        elif isinstance(task, WriteOpen):
            self._inner.write_open(task.ranges)  # type: ignore[attr-defined]
        elif isinstance(task, Flush):
            tell_of_drain(self._inner, task.drained_ns)
            task.flushed = self._inner.flush(max(0.0, task.deadline - time.monotonic()))
        elif isinstance(task, Idle) and self._paced is not None and self._paced.idle():
            self._queue.rest_again()

    def _tell_of_memory(self) -> None:
        if not self._told_of_memory:
            self._told_of_memory = True
            with contextlib.suppress(MemoryError):
                log.exception("the sink %r found no memory; it goes on, and what it misses is counted as dropped", self.name)

    def _close_inner(self) -> None:
        """In the time that is left; what the inner sink has not written by then it counts."""
        try:
            self._inner.close(self._pace.time_left())
        except GivenUp:
            pass
        except BaseException as error:
            self._error = self._error or _ordinary(error)

    def _tell_error(self) -> None:
        """Of the inner sink, where no write came after it that could have raised it."""
        error = self._error
        if error is not None and not self._told_error:
            self._told_error = True
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
        dropped = self._dropped()
        left = self._left()
        given_up = self._queue.over or self._error is not None
        own = {
            "rows_received": self._queue.received,
            "queue_dropped": dropped,
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
        """Rows that wait, or that nobody will take."""
        return max(0, self._queue.received - self._dropped() - self._inner_rows())

    def _dropped(self) -> int:
        """Rows that the queue had no room for, or the inner sink no memory."""
        finished = self._finished  # before those that it has taken, which may grow meanwhile
        missed = max(0, finished - self._inner_rows()) if self._told_of_memory else 0
        return self._queue.dropped + missed

    def _inner_rows(self) -> int:
        """How many rows the inner sink has taken; where it doesn't count them itself, those of whole batches."""
        return self._inner.counters().get("rows", self._written)

    def _put(self, task: Flush | Close) -> bool:
        """False if no thread will do it."""
        return self._thread.is_alive() and self._queue.put(task)


def _ordinary(error: BaseException) -> Exception | SystemExit:
    """The error, or what tells of it and can be raised in other threads without ending them."""
    if isinstance(error, (Exception, SystemExit)):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
