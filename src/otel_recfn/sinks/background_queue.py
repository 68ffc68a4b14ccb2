"""What waits for a background sink's thread: batches, bounded, and what is asked for behind them.

A batch that doesn't fit is dropped, the newest first, and counted. Ranges in it that are parents of earlier rows are kept, and
later rows whose parent was dropped get its nearest ancestor (``batches/gaps.py``). A batch that there is no memory for is kept
and queued before the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.waiting_batches import WaitingBatches

IDLE_S = 1.5
"""After so long without a batch the inner sink is told that it is idle; longer than the pause that ends a trace of ours."""


@dataclass
class Write:
    """A batch for the inner sink."""

    batch: Batch
    weight: int
    after_gap: bool


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class Flush:
    """Somebody waits until it is done, or until the deadline."""

    deadline: float
    flushed: bool = False
    _undone: threading.Lock = field(default_factory=_taken_lock)
    """No event: where that finds no memory in one thread, another one waits for it without end."""

    def set_done(self) -> None:
        """Let who waits go on; called once."""
        self._undone.release()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, so long at most."""
        self._undone.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))


class Close:
    """The last task."""


class Idle:
    """Nothing came for a while."""


Task: TypeAlias = Write | Flush | Close | Idle


class WorkQueue:
    """Tasks in order. Every method may be called from any thread, but only one thread takes them.

    Args:
        max_rows: rows (and announced begins) that may wait. A larger batch is taken when nothing else waits.

    Attributes:
        received: rows that were put here.
        dropped: those of them that nobody gets.
        over: nothing is taken any more.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._lock = threading.RLock()  # taken without the condition: its Python code may find no memory for letting go of it
        self._changed = threading.Condition(self._lock)
        self._tasks: deque[Task] = deque()
        self._arrived = WaitingBatches()
        self._waiting = 0
        self._gap = False
        self._gaps = Gaps()
        self._rested = True
        self.received = self.dropped = 0
        self.over = False

    def has_room(self) -> bool:
        """Whether few batches wait for memory. How many wait for the worker doesn't matter: those are bounded by dropping."""
        with self._lock:
            self._take_arrived()
            return self._arrived.has_room()

    def put_batch(self, batch: Batch) -> None:
        """Queue a batch, or what must be kept of it; the rest counts as dropped.

        Raises:
            MemoryError: nothing of it was taken.
        """
        with self._lock:
            received, dropped = self.received + len(batch), self.dropped + len(batch)
            if self.over or not self._arrived.add(batch):
                self.received, self.dropped, self._gap = received, dropped, True
                return
            self.received = received
            try:
                self._take_arrived()
            except OUT_OF_MEMORY:  # not even for calling it: the batch has arrived, and goes on with the next one
                pass

    def put(self, task: Flush | Close) -> bool:
        """Queue a task behind all batches; False where nothing is taken any more."""
        with self._lock:
            if self.over:
                return False
            self._take_arrived()
            self._tasks.append(task)
            self._changed.notify()
        return True

    def next(self) -> Task:
        """Wait for the next task; after a while without one, once since the last batch, to be idle; at the end, to close."""
        with self._lock:
            if not self._rested and not self._changed.wait_for(self._has_task, IDLE_S):
                self._rested = True
                return Idle()
            while not self._changed.wait_for(self._has_task, IDLE_S):
                pass  # a notification that finds no memory half way is lost
            task = self._tasks.popleft() if self._tasks else Close()
            self._rested = self._rested and not isinstance(task, Write)
            return task

    def written(self, write: Write, missed: int = 0) -> None:
        """There is room again; the inner sink missed so many of the rows for want of memory."""
        with self._lock:
            waiting, dropped = self._waiting - write.weight, self.dropped + missed
            self._waiting, self.dropped, self._gap = waiting, dropped, self._gap or missed > 0

    def release(self) -> list[Task]:
        """Take all that waits."""
        with self._lock:
            self._take_arrived()
            left, self._tasks = list(self._tasks), deque()
            return left

    def end(self) -> None:
        """From here on nothing is taken; what waits is for ``release``, as soon as the worker is back from its exporter."""
        with self._lock:
            self.over = True
            self._changed.notify_all()

    def end_in_child(self) -> None:
        """The same in a forked child, where another thread may have held the lock."""
        self._lock = threading.RLock()
        self._changed, self.over = threading.Condition(self._lock), True

    def _take_arrived(self) -> None:
        try:
            while (batch := self._arrived.first()) is not None:
                self._take(batch)
                self._arrived.remove_first()
        except OUT_OF_MEMORY:  # what is left waits on, and is taken with the next batch
            pass

    def _take(self, batch: Batch) -> None:
        """Queue a batch, or what must be kept of it; where there is no memory for it, nothing has changed."""
        weight = len(batch) + len(batch.opened)
        fits = not self._waiting or self._waiting + weight <= self._max_rows
        kept = self._gaps.mended(batch) if fits else self._gaps.kept_of(batch)
        weight = weight if fits else len(kept)
        dropped, waiting = self.dropped + len(batch) - len(kept), self._waiting + weight
        if weight:
            self._changed.notify()
            self._tasks.append(Write(kept, weight, self._gap or not fits))
            try:
                self._gaps.note(kept)
            except BaseException:
                self._tasks.pop()
                raise
        self.dropped, self._waiting = dropped, waiting
        self._gap = (self._gap or not fits) and not weight

    def _has_task(self) -> bool:
        return bool(self._tasks) or self.over
