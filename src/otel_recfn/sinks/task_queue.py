"""What waits for a thread of ours, bounded, and who waits until what came before is done.

put ──► waiting, in order ──next──► in hand, until the next one is asked for
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Flush:
    """Somebody waits until what was put before it is done."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        self._flushed = False
        self.done = threading.Event()

    def do(self, flush: Callable[[float], bool]) -> None:
        """In the thread: call that with the seconds that are left."""
        try:
            self._flushed = flush(max(0.0, self._deadline - time.monotonic()))
        finally:
            self.done.set()

    def wait(self) -> bool:
        """What the call said; False where it is not back in time."""
        self.done.wait(min(max(0.0, self._timeout_s), threading.TIMEOUT_MAX))
        return self._flushed


def newest(tasks: Sequence[T]) -> T:
    """The one that is put goes where there is no room for it."""
    return tasks[-1]


class TaskQueue(Generic[T]):
    """Of one thread. Every method may be called from any thread, but for ``next``.

    Args:
        most: what all tasks weigh together at most, with the one in hand. A heavier one is taken where there is no other.
        weigh: what one weighs.
        first_to_drop: which of those that wait goes first; the last of them is the one that is put.
    """

    def __init__(self, most: int, weigh: Callable[[T], int], first_to_drop: Callable[[Sequence[T]], T] = newest) -> None:
        self._most, self._weigh, self._first_to_drop = most, weigh, first_to_drop
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T | Flush, int]] = deque()
        """With what each weighs."""
        self._weight = self._in_hand = 0
        """Of all tasks; of the one in hand."""
        self._ended = False

    def put(self, task: T) -> list[T]:
        """Append a task. Returns those that are dropped for want of room, which may be this one."""
        weight = self._weigh(task)
        with self._changed:
            if self._ended:
                return [task]
            dropped: list[T] = []
            while self._weight and self._weight + weight > self._most:
                victim = self._first_to_drop([*self._tasks(), task])
                dropped.append(victim)
                if victim is task:
                    return dropped
                self._take_out(victim)
            self._append(task, weight)
            return dropped

    def _take_out(self, victim: T) -> None:
        [found] = [entry for entry in self._waiting if entry[0] is victim]
        self._waiting.remove(found)
        self._weight -= found[1]

    def put_flush(self, timeout_s: float) -> Flush | None:
        """Append a flush, to wait for; None after the end."""
        flush = Flush(timeout_s)
        with self._changed:
            if self._ended:
                return None
            self._append(flush, 0)
            return flush

    def next(self, timeout_s: float | None = None) -> T | Flush | None:
        """What waits longest, which is in hand from now on; None where nothing came in time, or comes any more."""
        with self._changed:
            self._weight -= self._in_hand
            self._in_hand = 0
            self._changed.wait_for(lambda: self._waiting or self._ended, timeout_s)
            if not self._waiting:
                return None
            first, self._in_hand = self._waiting.popleft()
            return first

    def has_one_of(self, kind: type) -> bool:
        """Whether a task of this kind waits."""
        return any(isinstance(task, kind) for task in self._tasks())

    @property
    def is_filling(self) -> bool:
        """Whether half of the room is taken."""
        return 2 * self._weight > self._most

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    @property
    def is_open(self) -> bool:
        """Whether tasks are still taken."""
        return not self._ended

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more and nothing waits."""
        return self._ended and not self._waiting

    def end(self) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def clear(self) -> None:
        """Drop what waits; who waits for a flush goes on."""
        with self._changed:
            for one, _ in self._waiting:
                if isinstance(one, Flush):
                    one.done.set()
            self._waiting.clear()
            self._weight = self._in_hand

    def _append(self, one: T | Flush, weight: int) -> None:
        self._waiting.append((one, weight))
        self._weight += weight
        self._changed.notify()

    def _tasks(self) -> list[T]:
        return [one for one, _ in list(self._waiting) if not isinstance(one, Flush)]
