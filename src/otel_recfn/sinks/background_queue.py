"""What waits for a background sink's thread: batches, bounded, and what is asked for behind them.

A batch that doesn't fit is dropped, the newest first, and counted. Ranges in it that are parents of earlier rows are kept, and
later rows whose parent was dropped get its nearest ancestor (``batches/gaps.py``). A batch that there is no memory for is kept
and queued before the next one.

A method that raised a MemoryError has done nothing: the lock is never left by ``with``, which may raise one at its end.

The worker takes no lock: a signal handler that waits for it may have interrupted the thread that holds the one of this queue.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import ATTEMPTS, OUT_OF_MEMORY
from otel_recfn.sinks.lost_places import NOWHERE, missing, with_more
from otel_recfn.sinks.waiting_batches import WaitingBatches
from otel_recfn.support.timed_lock import while_taken
from otel_recfn.support.waker import Waker

RELEASE_S = 0.1
"""How long a release waits for the lock. Who holds it longer is interrupted by a signal handler, and that may wait for this."""
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
    taken: bool = False


def _taken_lock() -> threading.Lock:
    try:
        lock = threading.Lock()
    except RuntimeError as error:  # what Python raises where there is no memory for a lock
        raise MemoryError(str(error)) from error
    lock.acquire()
    return lock


@dataclass(eq=False)
class Flush:
    """Somebody waits until it is done, or until the deadline."""

    deadline: float
    drained_ns: int = 0
    """What had ended by then is queued before it."""
    flushed: bool = False
    _undone: threading.Lock = field(default_factory=_taken_lock)
    """No event: where that finds no memory in one thread, another one waits for it without end."""

    def set_done(self) -> None:
        """Let who waits go on; called once."""
        self._undone.release()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, so long at most."""
        self._undone.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))


@dataclass(eq=False)
class _Plan:
    """What is to be queued of a batch."""

    batch: Batch
    kept: Batch
    fits: bool


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
        dropped_at: how many were dropped in each place; of the newest.
        over: nothing is taken any more.
    """

    def __init__(self, max_rows: int, rows_of_a_batch: int = 0) -> None:
        self._max_rows, self._rows_of_a_batch = max_rows, rows_of_a_batch
        self._lock = threading.RLock()
        """Of who queues."""
        self._waker = Waker()
        self._tasks: deque[Task] = deque()
        self._open: WriteOpen | None = None
        """The last one."""
        self._arrived = WaitingBatches()
        self._planned: _Plan | None = None
        self._taking = self._gap = False
        self._gaps = Gaps()
        self._rested = True
        self.received = self._dropped = self._queued = 0
        self._written = self._missed = self._missed_before = 0
        """The worker's: weight of what it has written, rows that it missed. And how many these were at the last gap."""
        self.dropped_at = NOWHERE
        self.over = False

    @property
    def dropped(self) -> int:
        """Rows that were put here and nobody gets."""
        return self._dropped + self._missed

    def has_room(self) -> bool:
        """Whether few batches wait for memory. How many wait for the worker doesn't matter: those are bounded by dropping."""
        return while_taken(self._lock, self._has_room)

    def _has_room(self) -> bool:
        self._take_arrived()
        return self._arrived.has_room()

    def is_filling(self) -> bool:
        """Whether what waits for the worker, or is under way there, takes half of the room. From any thread."""
        return 2 * (self._queued - self._written) > self._max_rows

    def has_batch(self) -> bool:
        """Whether the next task is a batch."""
        try:
            return isinstance(self._tasks[0], Write)
        except IndexError:
            return False

    def put_batch(self, batch: Batch) -> None:
        """Queue a batch, or what must be kept of it; the rest counts as dropped.

        Raises:
            MemoryError: nothing of it was taken.
        """
        while_taken(self._lock, self._put_batch, batch)

    def _put_batch(self, batch: Batch) -> None:
        received, dropped = self.received + len(batch), self._dropped + len(batch)
        if self.over or not self._arrived.add(batch):
            self.received, self._dropped, self._gap = received, dropped, True
            return
        self.received = received
        try:
            self._take_arrived()
        except OUT_OF_MEMORY:  # not even for calling it: the batch has arrived, and goes on with the next one
            pass

    def put_open(self, ranges: Batch) -> None:
        """Queue ranges that are open for long, unless others wait: whoever misses these is told of all that are left later."""
        if while_taken(self._lock, self._put_open, ranges):
            self._waker.wake()

    def _put_open(self, ranges: Batch) -> bool:
        if self.over or (self._open is not None and not self._open.taken):
            return False
        self._take_arrived()
        task = WriteOpen(ranges)
        self._tasks.append(task)
        self._open = task
        return True

    def put(self, task: Flush | Close) -> bool:
        """Queue a task behind all batches; False where nothing is taken any more."""
        if not while_taken(self._lock, self._put, task):
            return False
        self._waker.wake()
        return not (self.over and self._took_back(task))

    def _put(self, task: Flush | Close) -> bool:
        if self.over:
            return False
        self._take_arrived()
        self._tasks.append(task)
        return True

    def next(self) -> Task:
        """Wait for the next task; after a while without one, to be idle, once since the last batch or ``rest_again``; at the
        end, to close."""
        while True:
            task = self._first()
            if task is not None:
                self._rested = self._rested and not isinstance(task, Write)
                return task
            if self.over:
                return Close()
            if not self._waker.wait(IDLE_S) and not self._rested:
                self._rested = True
                return Idle()

    def rest_again(self) -> None:
        """To be idle is a task once more, after as long a while."""
        self._rested = False

    def written(self, write: Write, missed: int = 0) -> None:
        """There is room again; the inner sink missed so many of the rows for want of memory."""
        written, all_missed = self._written + write.weight, self._missed + missed
        self._written, self._missed = written, all_missed

    def release(self) -> list[Task]:
        """Take all that waits."""
        if self._lock.acquire(timeout=RELEASE_S):  # where a signal handler waits for this, what has arrived stays
            try:
                for _ in range(ATTEMPTS):  # where there is no memory for planning it, what has arrived stays
                    self._take_arrived()
                    if not len(self._arrived):
                        break
            finally:
                self._lock.release()
        left: list[Task] = []
        while (task := self._first()) is not None:
            left.append(task)
        return left

    def end(self) -> None:
        """From here on nothing is taken; what waits is for ``release``, as soon as the worker is back from its exporter."""
        self.over = True
        self._waker.wake()

    def end_in_child(self) -> None:
        """The same in a forked child, where another thread may have held the lock."""
        self._lock, self.over = threading.RLock(), True

    def _took_back(self, task: Task) -> bool:
        """A task that nobody takes any more: the worker ended while it was queued."""
        try:
            self._tasks.remove(task)
        except ValueError:
            return False
        return True

    def _first(self) -> Task | None:
        try:
            return self._tasks.popleft()
        except IndexError:
            return None

    def _take_arrived(self) -> None:
        """A signal handler that flushes in the middle of this leaves the batch to who was interrupted."""
        try:
            while len(self._arrived) and not self._taking:
                self._take_first()
        except OUT_OF_MEMORY:  # what is left waits on, and is taken with the next batch
            pass

    def _take_first(self) -> None:
        try:
            self._taking = True
            batch = self._arrived.first()
            if batch is not None:
                self._take(batch)
                self._arrived.remove_first()
        finally:
            self._taking = False
        self._waker.wake()

    def _take(self, batch: Batch) -> None:
        """Queue a batch, or what must be kept of it. Where there is no memory for it, it is called again."""
        plan = self._plan(batch)
        missed, gap = self._missed, self._gap or not plan.fits or self._missed != self._missed_before
        weight = len(plan.kept) + (len(batch.opened) if plan.fits else 0)
        weight += self._rows_of_a_batch if weight else 0
        dropped, queued = self._dropped + len(batch) - len(plan.kept), self._queued + weight
        dropped_at = self.dropped_at if plan.fits else with_more(self.dropped_at, missing(batch, plan.kept))
        if weight:
            self._tasks.append(Write(plan.kept, weight, gap))
        self._dropped, self.dropped_at, self._queued, self._planned = dropped, dropped_at, queued, None
        self._gap, self._missed_before = gap and not weight, missed

    def _plan(self, batch: Batch) -> _Plan:
        """Noted already: what comes after it lies in what is kept of it."""
        plan = self._planned
        if plan is None or plan.batch is not batch:
            waiting, weight = self._queued - self._written, self._rows_of_a_batch + len(batch) + len(batch.opened)
            fits = not waiting or waiting + weight <= self._max_rows
            plan = _Plan(batch, self._gaps.mended(batch) if fits else self._gaps.kept_of(batch), fits)
            self._gaps.note(plan.kept)
            self._planned = plan
        return plan
