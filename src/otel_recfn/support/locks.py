"""Locks that are acquired within a time, and that no signal handler leaves held by raising.

A handler may raise as soon as a call returns, before what the call returned is assigned:

    held = lock.acquire(timeout=1)  # KeyboardInterrupt: the lock is held, and nobody knows it

So C code stores the result too, and a handler comes before both or after both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Protocol, TypeVar


class Lock(Protocol):
    """A lock of ``threading``, or one that gevent put in its place."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


LockT = TypeVar("LockT", bound=Lock)


def acquire_into(held: list[LockT], lock: LockT, timeout_s: float) -> None:
    """Acquire the lock, if it can be had in so many seconds, and add it to those that are held.

    -1 waits as long as it takes, 0 doesn't wait.
    """
    asked: tuple[tuple[bool | float], ...] = ((True,), (timeout_s,)) if timeout_s else ((False,),)
    held.extend(compress((lock,), map(lock.acquire, *asked)))


@contextmanager
def acquired(lock: Lock, timeout_s: float) -> Iterator[bool]:
    """Hold the lock in a block, if it can be had in so many seconds. Yields whether it is held.

    The lock is released whatever is raised, wherever it is raised: at once in here and in the
    block; as soon as the exception is dropped, and this generator with it, if it was raised in
    between, in a function of contextlib's.
    """
    held: list[Lock] = []
    try:
        acquire_into(held, lock, timeout_s)
        yield bool(held)
    finally:
        for each in held:
            each.release()
