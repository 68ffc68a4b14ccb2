"""Locks that a fork takes, so that the child finds what they guard as nobody left it half done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable


class HeldLocks:
    """What the forking threads hold meanwhile."""

    def __init__(self) -> None:
        self._of_thread: dict[int, list[threading.RLock]] = {}

    def take(self, locks: Iterable[threading.RLock], deadline: float) -> None:
        """Take them in this order, those that can't be had until ``deadline`` left out: a sink may hang."""
        held = self._of_thread[threading.get_ident()] = []
        held.extend(lock for lock in locks if lock.acquire(timeout=max(0.0, deadline - time.monotonic())))

    def give_back(self) -> None:
        """Those that this thread took."""
        for lock in reversed(self._of_thread.pop(threading.get_ident(), ())):
            lock.release()

    def after_fork_in_child(self) -> None:
        """The child has made its locks anew."""
        self._of_thread = {}
