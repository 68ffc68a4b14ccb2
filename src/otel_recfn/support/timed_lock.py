"""Takes a lock so that neither a signal handler that raises nor a failed allocation leaves it taken.

Such a handler runs after ``acquire`` has returned and before its result is stored. What C code stores is stored before that.
Python makes a tuple where a ``with`` block lets go of its lock; where there is no memory for that, the lock stays taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import compress
from typing import TypeVar

T = TypeVar("T")


def take_in_time(lock: threading.RLock, timeout_s: float, taken: list[threading.RLock]) -> None:
    """Take the lock, and append it to ``taken``, if it is free in time; -1 for no limit."""
    taken.extend(compress((lock,), map(lock.acquire, (True,), (timeout_s,))))


def while_taken(lock: threading.RLock, call: Callable[..., T], *arguments: object) -> T:
    """Call it while the lock is taken. Where there is no memory for that, it raises before the call, and never after it."""
    taken: list[threading.RLock] = []
    try:
        take_in_time(lock, -1, taken)
        return call(*arguments)
    finally:
        if taken:
            lock.release()
