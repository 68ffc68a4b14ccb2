"""Runs a sink on a thread of its own, so that the drain thread never waits for a network.

    write() ──► bounded queue ──► worker thread ──► inner sink
                (WorkQueue)       at most a quarter of its time while the program runs (Pace)

The program comes first: the queue drops what doesn't fit, the thread works a share of the time, and ``flush`` and ``close``
return when their time is up, whatever an exporter does; what was left then is counted. Before the first batch after a gap the
inner sink is told of it (``note_gap``), because it missed begins and ends. The same is done where it found no memory for one,
unless it says when it has room (``has_room``): then the batch waits until it has. Where even the queue finds no memory, this
sink says that it has no room.

Shortly before the end of a ``close`` the inner sink is told to give up (``give_up``): of what is left it may write what must
not be missing. In the worker thread, where a span processor may call them, ``flush`` and ``close`` don't wait for themselves:
``flush`` says that not everything is out, and what was queued before a ``close`` is finished after it returned.

    rows_received = rows (taken by the inner sink) + queue_dropped + queued + abandoned
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.background_pace import GivenUp, Pace
from otel_recfn.sinks.background_queue import Close, Flush, Task, WorkQueue, Write
from otel_recfn.sinks.protocol import Sink, asks_for_room, has_room
from otel_recfn.support.own_thread import OwnThread, at_work

log = logging.getLogger("otel_recfn")

MAX_ROWS = 200_000
MAX_SHARE = 0.25
PAUSE_WITHOUT_MEMORY_S = 0.1


@runtime_checkable
class PacedSink(Protocol):
    """A sink that knows that it runs in the background."""

    def set_pace(self, pace: Callable[[], None]) -> None:
        """``pace`` is to be called now and then between pieces of work; it may sleep, or raise to end the work."""

    def note_gap(self) -> None:
        """Batches were lost between the last and the next."""

    def idle(self) -> None:
        """Nothing came for ``IDLE_S`` seconds."""

    def give_up(self, batches: Sequence[Batch], timeout_s: float) -> None:
        """After ``pace`` raised: ``close`` follows. Only what earlier rows need is still to be written.

        Args:
            batches: what was queued behind the batch that was being written.
            timeout_s: what is left of the time.
        """

    def supersede(self, left: Callable[[], Sequence[Batch]]) -> bool:
        """The same, and ``close``, in the closing thread, if the worker waits for an exporter: False if it doesn't.

        The worker's call raises ``GivenUp`` when it is back.

        Args:
            left: returns what is queued behind the batch that is being written.
        """

    def finish_superseded(self) -> None:
        """In the worker, when it is back: what the closing thread couldn't wait for."""


class BackgroundSink:
    """A sink in front of another that may wait. ``flush`` may be called from any thread, also while another one writes.

    Args:
        sink: the inner sink; used by the worker thread only, but for ``counters``.
        max_rows: rows (and announced begins) that may wait. A larger batch is taken when nothing else waits.
        max_share: of one processor's time, how much the inner sink may take while the program runs.
        start: whether the thread starts now or with the first batch.
    """

    flushes_beside_writes = True

    def __init__(self, sink: Sink, max_rows: int = MAX_ROWS, *, max_share: float = MAX_SHARE, start: bool = True) -> None:
        self.name = sink.name
        self._inner, self._max_rows, self._max_share = sink, max_rows, max_share
        self._queue, self._pace = WorkQueue(max_rows), Pace(max_share)
        self._task: Task | None = None
        """Taken from the queue, and not by the inner sink."""
        self._written = 0
        self._asks_for_room = asks_for_room(sink)
        self._logged = self._superseded = self._starved = False
        self._error: Exception | SystemExit | None = None
        self._paced = sink if isinstance(sink, PacedSink) else None
        if self._paced is not None:
            self._paced.set_pace(self._pace)
        self._thread = OwnThread(self._run, f"otel-recfn {self.name}")
        if start:
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
        if self._error is not None:
            raise self._error
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put_batch(batch)

    def flush(self, timeout_s: float) -> bool:
        """Let the inner sink finish what is queued, and flush; False when the time wasn't enough."""
        if self._thread is threading.current_thread():
            return False
        request = Flush(time.monotonic() + timeout_s)
        if not self._put(request):
            return self._error is None and not self._thread.is_alive() and self._left() == 0
        self._pace.hurry_up(+1)
        try:
            request.wait(timeout_s)
        finally:
            self._pace.hurry_up(-1)
        return request.flushed

    def close(self, timeout_s: float) -> None:
        """Finish, or give up after ``timeout_s`` seconds and leave the daemon thread to its exporter."""
        self._pace.end_in(timeout_s)
        started = self._put(Close())
        if self._thread is threading.current_thread():
            return
        if started:
            self._wait_for_end()
        elif not self._queue.over and self._error is None:
            self._release()
            self._inner.close(timeout_s)  # nothing was ever written: it has nothing to wait for
        self._queue.end()
        self._pace.end_now()

    def _wait_for_end(self) -> None:
        """Of the worker; near the end of the time also for an exporter that it waits for, and no longer."""
        for seconds in (self._pace.time_to_supersede(), self._pace.time_left()):
            self._thread.wait_for_end(seconds)
            if not self._thread.is_alive() or (self._paced is not None and self._paced.supersede(self._superseding)):
                return

    def _superseding(self) -> list[Batch]:
        self._superseded = True
        return self._release()

    @property
    def losses(self) -> tuple[str, ...]:
        """The inner sink's, and what never reached it."""
        return (*getattr(self._inner, "losses", ()), "queue_dropped", "abandoned")

    def counters(self) -> Mapping[str, int]:
        """The inner sink's, and what became of the rows that it never saw."""
        left = self._left()
        given_up = self._queue.over or self._error is not None
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
        return BackgroundSink(inner, self._max_rows, max_share=self._max_share, start=False) if inner is not None else None

    def _left(self) -> int:
        """Rows that the inner sink hasn't taken; a sink that counts ``rows`` itself is precise within a batch."""
        return max(0, self._queue.received - self._queue.dropped - self._inner_rows())

    def _put(self, task: Flush | Close) -> bool:
        """False if no thread will do it."""
        return self._thread.is_alive() and self._queue.put(task)

    def _run(self) -> None:
        with suppress_instrumentation():
            given_up = False
            try:
                self._work_on()
            except GivenUp:
                given_up = True
            except (Exception, SystemExit) as error:  # of an exporter that exits: the program, whose thread this isn't, goes on
                self._error = error
                self._pace.end_now()
            with at_work():
                self._end_inner(given_up)
            self._queue.over = True

    def _work_on(self) -> None:
        """Work, also after there was no memory for something: it is done again a little later, until the time is over."""
        while True:
            try:
                if self._starved:
                    self._pace()
                    time.sleep(PAUSE_WITHOUT_MEMORY_S)
                    self._starved = False
                return self._work()
            except OUT_OF_MEMORY:
                self._starved = True

    def _work(self) -> None:
        """Do what is queued until told to close."""
        while True:
            if self._task is None:
                self._task = self._queue.next()
            if isinstance(self._task, Close):
                return
            with at_work():
                self._do(self._task)
            self._pace()

    def _do(self, task: Task) -> None:
        if isinstance(task, Write):
            self._do_write(task)
        elif isinstance(task, Flush):
            self._do_flush(task)
        else:
            self._task = None
            if self._paced is not None:
                self._paced.idle()

    def _do_flush(self, task: Flush) -> None:
        try:
            self._task = None
            task.flushed = self._inner.flush(max(0.0, task.deadline - time.monotonic()))
        finally:
            task.set_done()

    def _do_write(self, task: Write) -> None:
        """Where there is no memory for all of it, an inner sink that doesn't ask for room goes on with the next batch.

        Raises:
            MemoryError: there was none before the inner sink had it. It is still the task.
        """
        rows_before, written, missed = self._inner_rows(), self._written + len(task.batch), 0
        if task.after_gap and self._paced is not None:
            self._paced.note_gap()
            task.after_gap = False
        if not has_room(self._inner):
            raise MemoryError
        try:
            self._task = None
            self._inner.write(task.batch)
            self._written = written
        except OUT_OF_MEMORY:
            if self._asks_for_room:
                self._task = task
                raise
            missed = len(task.batch) - (self._inner_rows() - rows_before)
            self._log_once("the sink %r found no memory for a batch, which is counted as dropped", self.name)
        finally:
            if self._task is None:
                self._has_written(task, missed)

    def _has_written(self, task: Write, missed: int) -> None:
        while True:
            try:
                return self._queue.written(task, missed)
            except OUT_OF_MEMORY:
                time.sleep(PAUSE_WITHOUT_MEMORY_S)

    def _inner_rows(self) -> int:
        """How many rows the inner sink has taken; where it doesn't count them itself, those of whole batches."""
        return self._inner.counters().get("rows", self._written)

    def _log_once(self, message: str, *arguments: object) -> None:
        if not self._logged:
            self._logged = True
            log.error(message, *arguments)

    def _release(self) -> list[Batch]:
        """Nobody will do what is still queued: let those who wait for a flush know. Returns the batches."""
        queued = self._queue.release()
        left = [self._task, *queued]
        self._task = None
        for task in left:
            if isinstance(task, Flush):
                task.set_done()
        return [task.batch for task in left if isinstance(task, Write)]

    def _release_at_last(self) -> list[Batch]:
        """The same, once there is memory, or the time is over."""
        while True:
            try:
                return self._release()
            except OUT_OF_MEMORY:
                if not self._pace.time_left():
                    return []
                time.sleep(PAUSE_WITHOUT_MEMORY_S)

    def _end_inner(self, given_up: bool) -> None:
        """Close the inner sink, in the time that is left, which was not enough for all where it is ``given_up``."""
        try:
            if self._superseded and self._paced is not None:
                self._paced.finish_superseded()
                return
            left = self._release_at_last()
            if (given_up or left) and self._paced is not None:
                with contextlib.suppress(*OUT_OF_MEMORY):
                    self._paced.give_up(left, self._pace.time_left())
            self._inner.close(self._pace.time_left())
        except GivenUp:  # while it waited for an exporter
            if self._paced is not None:
                self._paced.finish_superseded()
        except (Exception, SystemExit) as error:
            self._error = self._error or error
