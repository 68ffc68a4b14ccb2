"""A lock that a forked child finds free, although another thread of the parent held it: that thread isn't in the child."""

from __future__ import annotations

import threading
import weakref

from otel_recfn.support.forks import Order, around_forks

_living: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """``with lock.held:``; nothing else. What it guards must be whole, or harmless, at every moment.

    Attributes:
        held: a lock of Python's own, which no exception of a signal handler leaves locked, as it could between an ``__enter__``
            of ours and the block. Reentrant: the handler may come back for it.
    """

    def __init__(self) -> None:
        self.held = threading.RLock()
        _living.add(self)

    def _renew(self) -> None:
        self.held = threading.RLock()


def _renew_all() -> None:
    for lock in list(_living):
        lock._renew()


around_forks(Order.LOCKS, in_child=_renew_all)
