"""What waits for a background sink's thread: batches, bounded, and what is asked for behind them.

A batch that doesn't fit is dropped, the newest first, and counted. Ranges in it that are parents of earlier rows are kept, and
later rows whose parent was dropped get its nearest ancestor (``batches/gaps.py``).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.lost_places import NOWHERE, missing, with_more

IDLE_S = 1.5
"""After so long without a batch the inner sink is told that it is idle; longer than the pause that ends a trace of ours."""


@dataclass(eq=False)
class Write:
    """A batch for the inner sink."""

    batch: Batch
    weight: int
    after_gap: bool


@dataclass(eq=False)
class WriteOpen:
    """Ranges that are open for long, for the inner sink."""

    ranges: Batch


@dataclass(eq=False)
class Flush:
    """Somebody waits until it is done, or until the deadline."""

    deadline: float
    drained_ns: int = 0
    """What had ended by then is queued before it."""
    flushed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Close:
    """The last task."""


class Idle:
    """Nothing came for a while."""


Task: TypeAlias = Write | WriteOpen | Flush | Close | Idle


class WorkQueue:
    """Tasks in order. Every method may be called from any thread, but only one thread takes them.

    Args:
        max_rows: rows (and announced begins) that may wait. A larger batch is taken when nothing else waits.
        rows_of_a_batch: what a batch takes beside its rows, in rows.

    Attributes:
        received: rows that were put here.
        dropped: rows that were put here and nobody gets.
        dropped_at: how many were dropped in each place; of the newest.
        over: nothing is taken any more.
    """

    def __init__(self, max_rows: int, rows_of_a_batch: int = 0) -> None:
        self._max_rows, self._rows_of_a_batch = max_rows, rows_of_a_batch
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._waiting = 0
        """The weight of what waits for the worker, or is under way there."""
        self._gaps = Gaps()
        self._gap = False
        self._rested = True
        self.received = self.dropped = 0
        self.dropped_at = NOWHERE
        self.over = False

    def is_filling(self) -> bool:
        """Whether what waits for the worker, or is under way there, takes half of the room."""
        return 2 * self._waiting > self._max_rows

    def has_batch(self) -> bool:
        """Whether the next task is a batch."""
        with self._changed:
            return bool(self._tasks) and isinstance(self._tasks[0], Write)

    def put_batch(self, batch: Batch) -> None:
        """Queue a batch, or what must be kept of it; the rest counts as dropped."""
        with self._changed:
            kept = 0 if self.over else self._put_what_fits(batch)
            self.received += len(batch)
            self.dropped += len(batch) - kept

    def _put_what_fits(self, batch: Batch) -> int:
        """How many rows were queued."""
        if self._fits(batch):
            kept = self._gaps.mended(batch)
            self._put_write(kept, len(kept) + len(kept.opened))
        else:
            kept = self._gaps.kept_of(batch)
            self._gap, self.dropped_at = True, with_more(self.dropped_at, missing(batch, kept))
            self._put_write(kept, len(kept))
        return len(kept)

    def _fits(self, batch: Batch) -> bool:
        weight = self._rows_of_a_batch + len(batch) + len(batch.opened)
        return not self._waiting or self._waiting + weight <= self._max_rows

    def _put_write(self, batch: Batch, weight: int) -> None:
        self._gaps.note(batch)
        if weight:
            weight += self._rows_of_a_batch
            self._tasks.append(Write(batch, weight, self._gap))
            self._waiting += weight
            self._gap = False
            self._changed.notify()

    def put_open(self, ranges: Batch) -> None:
        """Queue ranges that are open for long, unless others wait: whoever misses these is told of all that are left later."""
        with self._changed:
            if not self.over and not any(isinstance(task, WriteOpen) for task in self._tasks):
                self._tasks.append(WriteOpen(ranges))
                self._changed.notify()

    def put(self, task: Flush | Close) -> bool:
        """Queue a task behind all batches; False where nothing is taken any more."""
        with self._changed:
            if self.over:
                return False
            self._tasks.append(task)
            self._changed.notify()
            return True

    def next(self) -> Task:
        """Wait for the next task; after a while without one, to be idle, once since the last batch or ``rest_again``; at the
        end, to close."""
        with self._changed:
            while not self._tasks:
                if self.over:
                    return Close()
                if not self._changed.wait(IDLE_S) and not self._tasks and not self._rested:
                    self._rested = True
                    return Idle()
            task = self._tasks.popleft()
            self._rested = self._rested and not isinstance(task, Write)
            return task

    def rest_again(self) -> None:
        """To be idle is a task once more, after as long a while."""
        self._rested = False

    def written(self, write: Write) -> None:
        """There is room again."""
        with self._changed:
            self._waiting -= write.weight

    def end(self) -> None:
        """Nothing is taken from here on, and what waits is dropped; who waits for a flush goes on."""
        with self._changed:
            self.over = True
            for task in self._tasks:
                if isinstance(task, Flush):
                    task.done.set()
            self._tasks.clear()
            self._changed.notify()

    def end_in_child(self) -> None:
        """The same in a forked child, where another thread may have held the lock."""
        self._changed, self.over = threading.Condition(), True
