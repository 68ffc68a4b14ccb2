"""Waits for a lock so long at most, so that a signal handler that raises doesn't leave it taken.

Such a handler runs after ``acquire`` has returned and before its result is stored. What C code stores is stored before that.
"""

from __future__ import annotations

import threading
from itertools import compress


def take_in_time(lock: threading.RLock, timeout_s: float, taken: list[threading.RLock]) -> None:
    """Take the lock, and append it to ``taken``, if it is free in time; -1 for no limit."""
    taken.extend(compress((lock,), map(lock.acquire, (True,), (timeout_s,))))
