"""A lock that a forked child finds free, although another thread of the parent held it: that thread isn't in the child."""

from __future__ import annotations

import threading
import weakref

from otel_recfn.support.forks import Order, around_forks

_living: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """Used as ``with lock.held:`` only. What it guards must be consistent at every moment: a fork may come at any.

    Attributes:
        held: a lock of Python's own: if we had an ``__enter__``, a signal handler that raises between it and the block would
            leave the lock taken. It is reentrant, because a signal handler may take it again.
    """

    def __init__(self) -> None:
        try:
            self.held = threading.RLock()
        except RuntimeError as error:  # what Python raises where there is no memory for a lock
            raise MemoryError(str(error)) from error
        _living.add(self)

    def _renew(self) -> None:
        self.held = threading.RLock()


def _renew_all() -> None:
    for lock in list(_living):
        lock._renew()


around_forks(Order.LOCKS, in_child=_renew_all)
