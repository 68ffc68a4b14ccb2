"""What waits for threads of ours, bounded, and who waits until what came before is done.

put ──► waiting, in order ──next──► in hand, until the thread asks for the next one
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

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


@dataclass(eq=False)
class _Entry(Generic[T]):
    """A task or a flush, and what it weighs; None once it is dropped."""

    task: T | Flush | None
    weight: int


class TaskQueue(Generic[T]):
    """Of one thread, or of several that do the same. Every method may be called from any thread, but for ``next``.

    Args:
        most: what all tasks weigh together at most, with those in hand. A heavier one is taken where there is no other.
        weigh: what one weighs.
        goes_first: where there is no room the oldest task of which this is true is dropped, else the oldest; None: the one that
            is put.
    """

    def __init__(self, most: int, weigh: Callable[[T], int], goes_first: Callable[[T], bool] | None = None) -> None:
        self._most, self._weigh, self._goes_first = most, weigh, goes_first
        self._changed = threading.Condition()
        self._entries: deque[_Entry[T]] = deque()
        self._first: deque[_Entry[T]] = deque()
        """Those of them that go first."""
        self._count = self._weight = 0
        """How many wait; what all tasks weigh."""
        self._in_hand: dict[int, int] = {}
        """What those in hand weigh, by thread."""
        self._ended = False

    def put(self, task: T) -> list[T]:
        """Append a task. Returns those that are dropped for want of room, which may be this one."""
        weight, goes_first = self._weigh(task), self._goes_first is not None and self._goes_first(task)
        with self._changed:
            if self._ended or (self._weight and self._weight_in_hand() + weight > self._most):
                return [task]
            dropped: list[T] = []
            while self._weight and self._weight + weight > self._most:
                if self._goes_first is None or (goes_first and not self._first):
                    return [*dropped, task]
                dropped.append(self._drop())
            entry = self._append(task, weight)
            if goes_first:
                self._first.append(entry)
            return dropped

    def _drop(self) -> T:
        """The one that goes first."""
        entry = self._first.popleft() if self._first else next(one for one in self._entries if self._is_task(one))
        return cast(T, self._remove(entry))

    def _remove(self, entry: _Entry[T]) -> T | Flush | None:
        """Its place stays until it is reached, or such places are many."""
        task, entry.task = entry.task, None
        self._count, self._weight = self._count - 1, self._weight - entry.weight
        if len(self._entries) > 2 * self._count + 100:
            self._entries = deque([one for one in self._entries if one.task is not None])
        return task

    @staticmethod
    def _is_task(entry: _Entry[T]) -> bool:
        return entry.task is not None and not isinstance(entry.task, Flush)

    def put_flush(self, timeout_s: float) -> Flush | None:
        """Append a flush, to wait for; None after the end."""
        flush = Flush(timeout_s)
        with self._changed:
            if self._ended:
                return None
            self._append(flush, 0)
            return flush

    def forget(self, flush: Flush) -> None:
        """Nobody waits for it any more."""
        with self._changed:
            for entry in [one for one in self._entries if one.task is flush]:
                self._remove(entry)

    def next(self, timeout_s: float | None = None) -> T | Flush | None:
        """What waits longest, which is in hand from now on; None where nothing came in time, or comes any more.

        A flush is only had when nothing is in hand.
        """
        with self._changed:
            self._weight -= self._in_hand.pop(threading.get_ident(), 0)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_next() or self.has_ended, timeout_s)
            if not self._has_next():
                return None
            entry = self._entries.popleft()
            if self._first and self._first[0] is entry:
                self._first.popleft()
            self._count -= 1
            self._in_hand[threading.get_ident()] = entry.weight
            return entry.task

    def _has_next(self) -> bool:
        while self._entries and self._entries[0].task is None:
            self._entries.popleft()
        return bool(self._entries) and not (self._in_hand and isinstance(self._entries[0].task, Flush))

    def _weight_in_hand(self) -> int:
        return sum(self._in_hand.values())

    def has_one_of(self, kind: type) -> bool:
        """Whether a task of this kind waits."""
        return any(isinstance(entry.task, kind) for entry in list(self._entries))

    def wait_for_room(self, timeout_s: float) -> None:
        """Until no more than half of the room is taken, or nothing comes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self.is_filling, timeout_s)

    @property
    def weight(self) -> int:
        """Of all tasks, with those in hand."""
        return self._weight

    @property
    def is_filling(self) -> bool:
        """Whether half of the room is taken."""
        return 2 * self._weight > self._most

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._count

    @property
    def is_open(self) -> bool:
        """Whether tasks are still taken."""
        return not self._ended

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more and nothing waits."""
        return self._ended and not self._count

    def end(self) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop what waits; who waits for a flush goes on."""
        with self._changed:
            for entry in self._entries:
                if isinstance(entry.task, Flush):
                    entry.task.done.set()
            self._entries.clear()
            self._first.clear()
            self._count, self._weight = 0, self._weight_in_hand()

    def _append(self, one: T | Flush, weight: int) -> _Entry[T]:
        entry = _Entry(one, weight)
        self._entries.append(entry)
        self._count, self._weight = self._count + 1, self._weight + weight
        self._changed.notify_all()
        return entry
