"""A lock that a forked child finds free, although another thread of the parent held it: that thread isn't in the child."""

from __future__ import annotations

import os
import threading
import weakref

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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
