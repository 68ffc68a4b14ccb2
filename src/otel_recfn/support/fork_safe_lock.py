"""A lock that a forked child finds free, although another thread of the parent held it: that thread isn't in the child."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.timed_lock import take_in_time, while_taken

P = ParamSpec("P")
T = TypeVar("T")

_living: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """Taken by ``with``; reentrant, because a signal handler may take it again.

    What it guards must be consistent at every moment: a fork may come at any.
    """

    def __init__(self) -> None:
        try:
            self._lock = threading.RLock()
        except RuntimeError as error:  # what Python raises where there is no memory for a lock
            raise MemoryError(str(error)) from error
        _living.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(RuntimeError):  # in a child that was forked in the block, where it is another lock
            self._lock.release()

    def call(self, work: Callable[P, T], /, *args: P.args, **keywords: P.kwargs) -> T:
        """Call it with the lock. Where there is no memory for that, it raises before the call, and never after it."""
        return while_taken(self._lock, work, *args, **keywords)

    def call_if_free(self, work: Callable[[], object]) -> None:
        """Call it with the lock, unless another thread has that now."""
        lock, taken = self._lock, list[threading.RLock]()
        try:
            take_in_time(lock, 0.0, taken)
            if taken:
                work()
        finally:
            if taken:
                lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()


def _renew_all() -> None:
    for lock in list(_living):
        lock._renew()


around_forks(Order.LOCKS, in_child=_renew_all)
