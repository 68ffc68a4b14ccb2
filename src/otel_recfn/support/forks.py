"""What this package does around a fork of the process, in one order that doesn't depend on the order of imports.

    before the fork   SESSION ► OWN_THREADS     what may wait for our threads is stopped before them
    in the parent     OWN_THREADS ► SESSION
    in the child      LOCKS ► OWN_THREADS ► RECORDER ► SPAN_IDS ► SESSION ► THREAD_STATE ► CALLS

A fork waits for all of it together no longer than ``FORK_WAIT_SECONDS``, so that the program is not held up.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from enum import IntEnum
from types import MethodType
from typing import Any, NamedTuple

log = logging.getLogger("otel_recfn")

FORK_WAIT_SECONDS = 1.0


class Order(IntEnum):
    """The order of calls in the child and in the parent; before the fork it is reversed."""

    LOCKS = 0
    OWN_THREADS = 1
    RECORDER = 2
    SPAN_IDS = 3
    SESSION = 4
    THREAD_STATE = 5
    CALLS = 6


class ForkSafeLock:
    """A lock that a forked child finds free, although a thread of the parent held it which isn't in the child.

    Reentrant, because a signal handler may record, and so take it again. What it guards must be consistent at every moment: a
    fork may come at any.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

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

    def renew(self) -> None:
        """In a forked child: free it, but where the thread that forked holds it, and goes on with it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class _Told(NamedTuple):
    """Each function by way of one that gives it, or None once its object is gone."""

    order: Order
    before: Callable[[], Any]
    in_parent: Callable[[], Any]
    in_child: Callable[[], Any]


_told: list[_Told] = []
_adding = ForkSafeLock()


def around_forks(
    order: Order,
    *,
    before: Callable[[float], object] | None = None,
    in_parent: Callable[[], object] | None = None,
    in_child: Callable[[], object] | None = None,
) -> None:
    """Call these functions around every fork, methods only as long as their object lives.

    Args:
        order: when, among all that are called.
        before: is given the ``time.monotonic()`` by which it has to return.
        in_parent: called after each fork, also if ``before`` failed.
        in_child: called in the child, where no other thread lives, not even one that held a lock.
    """
    global _told
    told = _Told(order, _reference(before), _reference(in_parent), _reference(in_child))
    with _adding:
        living = [one for one in _told if any(reference() is not None for reference in one[1:])]
        _told = sorted([*living, told], key=lambda one: one.order)  # a new list: a fork may be iterating over the old one


def _reference(function: Callable[..., object] | None) -> Callable[[], Any]:
    return weakref.WeakMethod(function) if isinstance(function, MethodType) else lambda: function


def _before() -> None:
    deadline = time.monotonic() + FORK_WAIT_SECONDS
    for told in reversed(_told):
        _call(told.before(), deadline)


def _in_parent() -> None:
    for told in _told:
        _call(told.in_parent())


def _in_child() -> None:
    for lock in list(_locks):
        lock.renew()
    for told in _told:
        _call(told.in_child())


def _call(function: Callable[..., object] | None, *arguments: float) -> None:
    try:
        if function is not None:
            function(*arguments)
    except Exception:  # the other functions have to be called all the same
        log.exception("otel-recfn failed around a fork")


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
