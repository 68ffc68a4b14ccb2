"""Runs a sink on a thread of its own, so that the drain thread never waits for a network.

    write() ──► bounded queue ──► worker thread ──► inner sink
                                  at most a quarter of its time while the program runs

The program comes first, in three ways:

* A batch that doesn't fit the queue is dropped, the newest first, and counted. Ranges in it that are parents of earlier rows
  are kept, and later rows whose parent was dropped get its nearest ancestor (``batches/gaps.py``). Before the next batch the
  inner sink is told of the gap (``note_gap``), because it missed begins and ends. The same is done without memory for a batch.
* Building spans and encoding them holds the GIL. The worker measures its own processor time and sleeps three times as long,
  after each batch and wherever the inner sink lets it (``set_pace``), unless someone waits in ``flush`` or ``close``.
* ``flush`` and ``close`` return when their time is up, whatever an exporter does; what was left then is counted. Shortly before
  the end of a ``close`` the inner sink is told to give up (``give_up``): of what is left it may write what must not be missing.
  In the worker thread, where a span processor may call them, they don't wait for themselves: ``flush`` says that not everything
  is out, and what was queued before a ``close`` is finished after it returned.

    rows_received = rows (taken by the inner sink) + queue_dropped + queued + abandoned
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.protocol import Sink
from otel_recfn.support.own_thread import OwnThread, at_work, resting

log = logging.getLogger("otel_recfn")

MAX_ROWS = 200_000
MAX_SHARE = 0.25
PAUSE_WITHOUT_MEMORY_S = 0.1
RESERVE_S = 1.0
RESERVED_SHARE = 0.2
"""The share of the time for ``close`` that is kept for spans which must not be missing; at most ``RESERVE_S`` seconds."""
IDLE_S = 1.5
"""After so long without a batch the inner sink is told that it is idle; longer than the pause that ends a trace of ours."""


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


class BackgroundSink:
    """A sink in front of another that may wait. ``flush`` may be called from any thread, also while another one writes.

    Args:
        sink: the inner sink; used by the worker thread only, but for ``counters``.
        max_rows: rows (and announced begins) that may wait. A larger batch is taken when nothing else waits.
        max_share: of one processor's time, how much the inner sink may take while the program runs.
        start: whether the thread starts now or with the first batch.
    """

    def __init__(self, sink: Sink, max_rows: int = MAX_ROWS, *, max_share: float = MAX_SHARE, start: bool = True) -> None:
        self.name = sink.name
        self._inner, self._max_rows, self._max_share = sink, max_rows, max_share
        self._lock = threading.RLock()  # taken without the condition: its Python code may find no memory for letting go of it
        self._changed = threading.Condition(self._lock)
        self._queue: deque[_Task] = deque()
        self._waiting = 0
        self._received = self._dropped = self._written = 0
        self._gap = False
        self._gaps = Gaps()
        self._urgent = 0
        self._hurry = threading.Event()
        self._paced_at = 0.0
        self._over = self._logged = False
        self._close_by, self._reserve_s = math.inf, 0.0
        self._error: Exception | None = None
        self._paced = sink if isinstance(sink, PacedSink) else None
        self._rested = True
        if self._paced is not None:
            self._paced.set_pace(self._pace)
        self._thread = OwnThread(self._run, f"otel-recfn {self.name}")
        if start:
            with contextlib.suppress(RuntimeError):  # no more threads here: tried again, and told, with the first batch
                self._thread.start()

    def write(self, batch: Batch) -> None:
        """Queue a batch, or drop it.

        Raises:
            Exception: what the inner sink raised; the session closes a sink that raises.
        """
        if self._error is not None:
            raise self._error
        rows = len(batch)
        with self._lock:
            dropped, received = self._dropped + rows, self._received + rows
            queued = 0
            try:
                queued = self._take(batch)
            except OUT_OF_MEMORY:
                self._gap = True
            self._dropped, self._received = dropped - queued, received
        self._ensure_started()

    def _take(self, batch: Batch) -> int:
        """Queue a batch, or what must be kept of it. Returns how many rows; counts nothing where there is no memory for it."""
        if self._over:
            return 0
        weight = len(batch) + len(batch.opened)
        if self._waiting and self._waiting + weight > self._max_rows:
            self._gap = True
            batch = self._gaps.reduced(batch)
            weight = len(batch)
        else:
            batch = self._gaps.passed(batch)
        if weight:
            rows, waiting = len(batch), self._waiting + weight
            self._changed.notify()
            self._queue.append(_Write(batch, weight, self._gap))
            self._waiting, self._gap = waiting, False
            return rows
        return 0

    def flush(self, timeout_s: float) -> bool:
        """Let the inner sink finish what is queued, and flush; False when the time wasn't enough."""
        if self._thread is threading.current_thread():
            return False
        request = _Flush(time.monotonic() + timeout_s)
        if not self._put(request):
            return self._error is None and not self._thread.is_alive() and self._left() == 0
        self._hurry_up(+1)
        try:
            request.done.wait(timeout_s)
        finally:
            self._hurry_up(-1)
        return request.flushed

    def close(self, timeout_s: float) -> None:
        """Finish, or give up after ``timeout_s`` seconds and leave the daemon thread to its exporter."""
        deadline = time.monotonic() + timeout_s
        started = self._put(_Close())
        self._close_by, self._reserve_s = deadline, min(RESERVE_S, RESERVED_SHARE * timeout_s)
        self._hurry_up(+1)
        if self._thread is threading.current_thread():
            return
        if started:
            self._thread.wait_for_end(timeout_s)
        elif not self._over and self._error is None:
            self._inner.close(timeout_s)  # nothing was ever written: it has nothing to wait for
        with self._lock:
            self._over = True
            self._queue.clear()

    @property
    def losses(self) -> tuple[str, ...]:
        """The inner sink's, and what never reached it."""
        return (*getattr(self._inner, "losses", ()), "queue_dropped", "abandoned")

    def counters(self) -> Mapping[str, int]:
        """The inner sink's, and what became of the rows that it never saw."""
        left = self._left()
        given_up = self._over or self._error is not None
        own = {
            "rows_received": self._received,
            "queue_dropped": self._dropped,
            "queued": 0 if given_up else left,
            "abandoned": left if given_up else 0,
        }
        return {**self._inner.counters(), **own}

    def after_fork_in_child(self) -> Sink | None:
        """The same around the inner sink's successor; its thread starts with its first batch.

        This one is over; the forking thread may be in the middle of a call of it, so it gets locks that nobody holds.
        """
        self._lock = threading.RLock()
        self._changed, self._hurry, self._over = threading.Condition(self._lock), threading.Event(), True
        inner = self._inner.after_fork_in_child()
        return BackgroundSink(inner, self._max_rows, max_share=self._max_share, start=False) if inner is not None else None

    def _left(self) -> int:
        """Rows that the inner sink hasn't taken; a sink that counts ``rows`` itself is precise within a batch."""
        return max(0, self._received - self._dropped - self._inner_rows())

    def _put(self, task: _Flush | _Close) -> bool:
        """Queue a task behind all batches; False if no thread will do it."""
        with self._lock:
            if self._over or not self._thread.is_alive():
                return False
            self._queue.append(task)
            self._changed.notify()
        return True

    def _ensure_started(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _hurry_up(self, more: int) -> None:
        with self._lock:
            self._urgent += more
            if self._urgent:
                self._hurry.set()
            else:
                self._hurry.clear()

    def _run(self) -> None:
        with suppress_instrumentation():
            given_up = False
            try:
                self._work_on()
            except _GivenUp:
                given_up = True
            except Exception as error:
                self._error = error
            with at_work():
                left = self._release_waiting()
                self._end_inner(left if given_up else None)
            self._over = True

    def _work_on(self) -> None:
        """Work, also after there was no memory for something: what it was is missing, and the sink goes on."""
        while True:
            try:
                return self._work()
            except OUT_OF_MEMORY:
                time.sleep(PAUSE_WITHOUT_MEMORY_S)

    def _work(self) -> None:
        """Do what is queued until told to close."""
        while True:
            task = self._next()
            if isinstance(task, _Close):
                return
            with at_work():
                self._do(task)
            self._pace()

    def _do(self, task: _Task) -> None:
        if isinstance(task, _Write):
            self._do_write(task)
        elif isinstance(task, _Flush):
            self._do_flush(task)
        elif self._paced is not None:
            self._paced.idle()

    def _do_flush(self, task: _Flush) -> None:
        try:
            task.flushed = self._inner.flush(max(0.0, task.deadline - time.monotonic()))
        finally:
            task.done.set()

    def _do_write(self, task: _Write) -> None:
        rows_before = None
        try:
            rows_before = self._inner_rows()
            if task.after_gap and self._paced is not None:
                self._paced.note_gap()
            self._rested = False
            self._inner.write(task.batch)
            self._written += len(task.batch)
        except OUT_OF_MEMORY:
            self._count_failed(task, rows_before)
        finally:
            with self._lock:
                self._waiting -= task.weight

    def _inner_rows(self) -> int:
        """How many rows the inner sink has taken; where it doesn't count them itself, those of whole batches."""
        return self._inner.counters().get("rows", self._written)

    def _count_failed(self, task: _Write, rows_before: int | None) -> None:
        """It goes on with the next batch; of this one it misses what it hasn't counted."""
        taken = 0 if rows_before is None else self._inner_rows() - rows_before
        with self._lock:
            self._dropped += len(task.batch) - taken
            self._gap = True
        self._log_once("the sink %r found no memory for a batch, which is counted as dropped", self.name)

    def _log_once(self, message: str, *arguments: object) -> None:
        if not self._logged:
            self._logged = True
            log.error(message, *arguments)

    def _next(self) -> _Task:
        """The next task; after a while without one, once, to be idle."""
        with self._lock:
            if not self._rested and not self._changed.wait_for(self._has_task, IDLE_S):
                self._rested = True
                return _Idle()
            while not self._changed.wait_for(self._has_task, IDLE_S):
                pass  # a notification that finds no memory half way is lost
            return self._queue.popleft()

    def _has_task(self) -> bool:
        return bool(self._queue)

    def _pace(self) -> None:
        """Sleep off the time worked since the last call."""
        worked = time.thread_time() - self._paced_at
        with resting():
            self._hurry.wait(worked * (1 / self._max_share - 1))
        self._paced_at = time.thread_time()
        if self._over or self._time_left() <= self._reserve_s:
            raise _GivenUp

    def _time_left(self) -> float:
        """Until a ``close`` is over, or no time where it ended by an error."""
        return max(0.0, self._close_by - time.monotonic()) if self._error is None else 0.0

    def _release_waiting(self) -> list[Batch]:
        """Nobody will do what is still queued: let those who wait for a flush know. Returns the batches."""
        with self._lock:
            left, self._queue = list(self._queue), deque()
        for task in left:
            if isinstance(task, _Flush):
                task.done.set()
        return [task.batch for task in left if isinstance(task, _Write)]

    def _end_inner(self, given_up: list[Batch] | None) -> None:
        """Close the inner sink, in the time that is left.

        Args:
            given_up: batches that there was no time for; None where all were written.
        """
        try:
            if given_up is not None and self._paced is not None:
                self._paced.give_up(given_up, self._time_left())
            self._inner.close(self._time_left())
        except Exception as error:
            self._error = self._error or error


@dataclass
class _Write:
    batch: Batch
    weight: int
    after_gap: bool


@dataclass
class _Flush:
    deadline: float
    done: threading.Event = field(default_factory=threading.Event)
    flushed: bool = False


class _Close:
    """The last one."""


class _Idle:
    """Nothing came for a while."""


_Task: TypeAlias = _Write | _Flush | _Close | _Idle


class _GivenUp(BaseException):
    """``close`` returned without us; not an error of the sink, which must not catch it."""
