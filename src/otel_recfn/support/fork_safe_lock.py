"""A lock that a forked child finds free, although another thread of the parent held it: that thread isn't in the child."""

from __future__ import annotations

import threading
import weakref

from otel_recfn.support.forks import Order, around_forks

_living: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """Taken by ``with``; reentrant, because a signal handler may record, and so take it again.

    What it guards must be consistent at every moment: a fork may come at any.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _living.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire_if_free(self) -> bool:
        """Whether it was free, or this thread's already; then ``release`` it."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """After ``acquire_if_free``."""
        self._lock.release()

    def _renew(self) -> None:
        if self._lock.acquire(blocking=False):  # free, or held by the thread that forked, which goes on with it
            self._lock.release()
        else:
            self._lock = threading.RLock()


def _renew_all() -> None:
    for lock in list(_living):
        lock._renew()


around_forks(Order.LOCKS, in_child=_renew_all)
