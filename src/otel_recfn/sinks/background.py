"""Runs a sink on a thread of its own, so that the drain thread never waits for a network.

    write() ──► bounded queue ──► worker thread ──► inner sink
                                  at most a quarter of its time while the program runs

The program comes first, in three ways:

* A batch that doesn't fit the queue is dropped whole, the newest first, and counted. Ranges whose rows are lost so are missing,
  and their children's spans have a parent that never comes; nothing else may go wrong: before the next batch the inner sink is
  told of the gap (``note_gap``), as it missed begins and ends.
* Building spans and encoding them holds the GIL. The worker measures its own processor time and sleeps three times as long,
  after each batch and wherever the inner sink lets it (``set_pace``), unless someone waits in ``flush`` or ``close``.
* ``flush`` and ``close`` return when their time is up, whatever an exporter does; what was left then is counted. In the worker
  thread, where a span processor may call them, they don't wait for themselves: ``flush`` says that not everything is out, and
  what was queued before a ``close`` is finished after it returned.

    rows_received = rows (taken by the inner sink) + queue_dropped + queued + abandoned
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.model.own_thread import OwnThread, at_work, resting
from otel_recfn.sinks.protocol import Sink

MAX_ROWS = 200_000
MAX_SHARE = 0.25
IDLE_S = 1.5
"""The inner sink hears of it when nothing came for so long; longer than what ends a trace of our own."""


@runtime_checkable
class PacedSink(Protocol):
    """A sink that knows that it runs in the background."""

    def set_pace(self, pace: Callable[[], None]) -> None:
        """``pace`` is to be called now and then between pieces of work; it may sleep, or raise to end the work."""

    def note_gap(self) -> None:
        """Batches were lost between the last and the next."""

    def idle(self) -> None:
        """Nothing came for ``IDLE_S`` seconds."""


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
        self._changed = threading.Condition()
        self._queue: deque[_Task] = deque()
        self._waiting = 0
        self._received = self._dropped = self._written = 0
        self._gap = False
        self._urgent = 0
        self._hurry = threading.Event()
        self._paced_at = 0.0
        self._over = False
        self._close_by = math.inf
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
        with self._changed:
            self._received += len(batch)
            weight = len(batch) + len(batch.opened)
            if self._over or (self._waiting and self._waiting + weight > self._max_rows):
                self._dropped += len(batch)
                self._gap = True
                return
            self._waiting += weight
            self._queue.append(_Write(batch, weight, self._gap))
            self._gap = False
            self._changed.notify()
        self._ensure_started()

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
        started = self._put(_Close(deadline))
        self._hurry_up(+1)
        if self._thread is threading.current_thread():
            self._close_by = deadline
            return
        if started:
            self._thread.wait_for_end(timeout_s)
        elif not self._over and self._error is None:
            self._inner.close(timeout_s)  # nothing was ever written: it has nothing to wait for
        with self._changed:
            self._over = True
            self._queue.clear()

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
        self._changed, self._hurry, self._over = threading.Condition(), threading.Event(), True
        inner = self._inner.after_fork_in_child()
        return BackgroundSink(inner, self._max_rows, max_share=self._max_share, start=False) if inner is not None else None

    def _left(self) -> int:
        """Rows that the inner sink hasn't taken; a sink that counts ``rows`` itself is precise within a batch."""
        taken = self._inner.counters().get("rows", self._written)
        return max(0, self._received - self._dropped - taken)

    def _put(self, task: _Flush | _Close) -> bool:
        """Queue a task behind all batches; False if no thread will do it."""
        with self._changed:
            if self._over or not self._thread.is_alive():
                return False
            self._queue.append(task)
            self._changed.notify()
        return True

    def _ensure_started(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _hurry_up(self, more: int) -> None:
        with self._changed:
            self._urgent += more
            if self._urgent:
                self._hurry.set()
            else:
                self._hurry.clear()

    def _run(self) -> None:
        with suppress_instrumentation():
            close_by = time.monotonic()
            try:
                close_by = self._work()
            except _GivenUp:
                pass
            except Exception as error:
                self._error = error
            with at_work():
                self._release_waiting()
                self._close_inner(close_by)
            self._over = True

    def _work(self) -> float:
        """Do what is queued until told to close; returns by when."""
        while True:
            task = self._next()
            if isinstance(task, _Close):
                return task.deadline
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
        if task.after_gap and self._paced is not None:
            self._paced.note_gap()
        self._rested = False
        self._inner.write(task.batch)
        with self._changed:
            self._written += len(task.batch)
            self._waiting -= task.weight

    def _next(self) -> _Task:
        """The next task; after a while without one, once, to be idle."""
        with self._changed:
            if not self._rested and not self._changed.wait_for(self._has_task, IDLE_S):
                self._rested = True
                return _Idle()
            self._changed.wait_for(self._has_task)
            return self._queue.popleft()

    def _has_task(self) -> bool:
        return bool(self._queue)

    def _pace(self) -> None:
        """Sleep off the time worked since the last call."""
        worked = time.thread_time() - self._paced_at
        with resting():
            self._hurry.wait(worked * (1 / self._max_share - 1))
        self._paced_at = time.thread_time()
        if self._over or time.monotonic() > self._close_by:
            raise _GivenUp

    def _release_waiting(self) -> None:
        """Nobody will do what is still queued: let those who wait for a flush know."""
        with self._changed:
            left, self._queue = list(self._queue), deque()
        for task in left:
            if isinstance(task, _Flush):
                task.done.set()

    def _close_inner(self, deadline: float) -> None:
        try:
            self._inner.close(max(0.0, deadline - time.monotonic()))
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


@dataclass
class _Close:
    deadline: float


class _Idle:
    """Nothing came for a while."""


_Task: TypeAlias = _Write | _Flush | _Close | _Idle


class _GivenUp(BaseException):
    """``close`` returned without us; not an error of the sink, which must not catch it."""
