"""A bounded queue of tasks for threads of ours, and of flushes, whose callers wait until the tasks
before them are done.

put ──► waiting, in order ──next──► in hand, until the thread asks for the next one
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

# The original, since gevent may replace it while a thread has a task in hand.
from threading import get_ident
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Flush:
    """A flush in the queue, whose caller waits until what was put before it is done."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._flushed = False
        self.done = threading.Event()

    def do(self, flush: Callable[[float], bool]) -> None:
        """Call the function, in the thread, with the seconds that are left."""
        try:
            self._flushed = flush(max(0.0, self._deadline - time.monotonic()))
        finally:
            self.done.set()

    def wait(self) -> bool:
        """The result of the function; False if it doesn't come in time."""
        self.done.wait(min(max(0.0, self._timeout_s), threading.TIMEOUT_MAX))
        return self._flushed


class TaskQueue(Generic[T]):
    """A queue of one thread, or of several that do the same.

    Methods may be called from any thread, but for ``next``.

    Args:
        limit: the maximum weight of all tasks together, with those in hand. A heavier one is taken
            if there is no other.
        weigh: returns the weight of a task.
        is_dropped_first: if there is no room, the oldest tasks of which this is true are dropped,
            then the oldest others. For a new task of which it is true others aren't dropped: if
            the room is still too small, the new one is dropped alone.
    """

    def __init__(
        self,
        limit: int,
        weigh: Callable[[T], int],
        is_dropped_first: Callable[[T], bool] = lambda _task: True,
    ) -> None:
        self._limit, self._weigh, self._is_dropped_first = limit, weigh, is_dropped_first
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T | Flush, int]] = deque()
        """The tasks and flushes that wait, with their weights."""
        self._weight = 0
        """The weight of all tasks, with those in hand."""
        self._in_progress: dict[int, int] = {}
        """The weight of the tasks in hand, by thread."""
        self._ended = False

    def put(self, task: T) -> list[T]:
        """Append a task.

        Returns the tasks that are dropped because there is no room, which may include this one.
        """
        weight = self._weigh(task)
        with self._changed:
            if self._ended or (
                self._weight and sum(self._in_progress.values()) + weight > self._limit
            ):
                return [task]
            indices = self._indices_to_drop(task, weight)
            if indices is None:
                return [task]
            dropped = [cast(T, self._waiting[index][0]) for index in indices]
            self._append(task, weight)
            for index in sorted(indices, reverse=True):
                self._weight -= self._waiting[index][1]
                del self._waiting[index]
            return dropped

    def _indices_to_drop(self, task: T, weight: int) -> list[int] | None:
        """The indices of the tasks to drop so that a new one has room; None to drop the new one,
        as they aren't enough.
        """
        found: list[int] = []
        missing = self._weight + weight - self._limit if self._weight else 0
        if missing <= 0:
            return found
        for first in (True, False):
            if self._is_dropped_first(task) and not first:
                break  # what may stay longer than the new task isn't dropped for it
            # A signal handler may append.
            for index, (each, its_weight) in enumerate(list(self._waiting)):
                if missing <= 0:
                    return found
                if not isinstance(each, Flush) and self._is_dropped_first(each) is first:
                    found.append(index)
                    missing -= its_weight
        return found if missing <= 0 else None

    def _append(self, task: T | Flush, weight: int) -> None:
        self._changed.notify_all()  # first: once a task is in the queue, nothing may raise
        self._waiting.append((task, weight))
        self._weight += weight

    def put_flush(self, timeout_s: float) -> Flush | None:
        """Append a flush to wait for; None after the end."""
        flush = Flush(timeout_s)
        with self._changed:
            if self._ended:
                return None
            self._append(flush, 0)
            return flush

    def wait_for(self, flush: Flush) -> bool:
        """The result of a flush; False if it doesn't come in time.

        The flush is taken out then: where a thread hangs, those for which nobody waits any more
        would pile up, and each be done when it goes on.
        """
        if flush.wait():
            return True
        with self._changed:
            self._waiting = deque([entry for entry in self._waiting if entry[0] is not flush])
        return False

    def next(self, timeout_s: float | None = None) -> T | Flush | None:
        """The oldest task, which is in hand from now on, or flush; None if nothing came in time, or
        comes any more.

        A flush is only had when nothing is in hand.
        """
        own = get_ident()
        with self._changed:
            self._weight -= self._in_progress.pop(own, 0)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_next() or self.has_ended, timeout_s)
            if not self._has_next():
                return None
            task, self._in_progress[own] = self._waiting.popleft()
            return task

    def _has_next(self) -> bool:
        return bool(self._waiting) and not (
            self._in_progress and isinstance(self._waiting[0][0], Flush)
        )

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until no more than half of the room is taken, or nothing comes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self.is_filling, timeout_s)

    def pause(self, timeout_s: float) -> None:
        """Wait so long, unless half of the room is taken, or somebody waits for a flush or the
        end.
        """
        with self._changed:
            self._changed.wait_for(self._is_urgent, timeout_s)

    def _is_urgent(self) -> bool:
        return (
            self._ended
            or self.is_filling
            or any(isinstance(task, Flush) for task, _ in self._waiting)
        )

    @property
    def is_filling(self) -> bool:
        """Whether half of the room is taken."""
        return 2 * self._weight > self._limit

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._waiting

    @property
    def is_open(self) -> bool:
        """Whether tasks are still taken."""
        return not self._ended

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more and the queue is empty."""
        return self._ended and not self._waiting

    def end(self) -> None:
        """Take no more tasks."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop the tasks, and let those who wait for a flush go on."""
        with self._changed:
            for task, _ in self._waiting:
                if isinstance(task, Flush):
                    task.done.set()
            self._waiting.clear()
            self._weight = sum(self._in_progress.values())
