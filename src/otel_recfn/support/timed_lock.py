"""Takes a lock so that neither a signal handler that raises nor a failed allocation leaves it taken.

Such a handler runs after ``acquire`` has returned and before its result is stored. What C code stores is stored before that.
Python makes a tuple where a ``with`` block lets go of its lock; where there is no memory for that, the lock stays taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def take_in_time(lock: threading.RLock, timeout_s: float, taken: list[threading.RLock]) -> None:
    """Take the lock, and append it to ``taken``, if it is free in time; -1 for no limit."""
    taken.extend(compress((lock,), map(lock.acquire, (True,), (timeout_s,))))


def while_taken(lock: Any, call: Callable[P, T], /, *args: P.args, **keywords: P.kwargs) -> T:
    """Call it while the lock is taken. Where there is no memory for that, it raises before the call, and never after it."""
    taken: list[threading.RLock] = []
    try:
        take_in_time(lock, -1, taken)
        return call(*args, **keywords)
    finally:
        if taken:
            lock.release()


@contextmanager
def taken(lock: threading.RLock) -> Iterator[None]:
    """Around a block. Where there is no memory at its end, it raises, and the lock is free all the same."""
    held: list[threading.RLock] = []
    try:
        take_in_time(lock, -1, held)
        yield
    finally:
        if held:
            lock.release()
