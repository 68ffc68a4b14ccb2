"""Takes locks around a fork, so that the child finds what they guard in a consistent state."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable


class HeldLocks:
    """The locks that forking threads hold."""

    def __init__(self) -> None:
        self._of_thread: dict[int, list[threading.RLock]] = {}

    def take(self, locks: Iterable[threading.RLock], deadline: float) -> None:
        """Take the locks in this order; leave out those that aren't free by ``deadline``, because a sink may hang."""
        held = self._of_thread[threading.get_ident()] = []
        for lock in locks:
            if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                held.append(lock)  # noqa: PERF401 - one after the other, so that whoever is interrupted gives back what it took

    def give_back(self) -> None:
        """Release the locks that this thread took."""
        for lock in reversed(self._of_thread.pop(threading.get_ident(), ())):
            lock.release()

    def after_fork_in_child(self) -> None:
        """In a child, where the locks were made anew: forget those that were taken."""
        self._of_thread = {}
