"""The handling of forks, in one order that doesn't depend on the order of imports.

    before the fork   SESSION ► OWN_THREADS     what may wait for our threads is stopped before them
    in the parent     OWN_THREADS ► SESSION
    in the child      locks ► OWN_THREADS ► RECORDER ► SPAN_IDS ► SESSION ► THREAD_STATE ► CALLS

A fork waits for all of it together no longer than ``FORK_WAIT_SECONDS``, so that the program is not held up.

A forked child has one thread, and inherits every lock that another one held: of logging, of an import, of an exporter. So what
a thread of ours does beside waiting it does ``at_work()``, and a fork waits until none is at work and keeps them at rest:

    thread     ──work──┤ rest ├──work──┤ rest ··········├──work──
    fork                         waits ┤ fork ├ go on ──┘

If a piece of work is not over in time (an exporter that waits for its network, say), later forks don't wait for it again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from types import MethodType
from typing import Any, NamedTuple

log = logging.getLogger("otel_recfn")

FORK_WAIT_SECONDS = 1.0


class Order(IntEnum):
    """The order of calls in the child and in the parent; before the fork it is reversed."""

    OWN_THREADS = 0
    RECORDER = 1
    SPAN_IDS = 2
    SESSION = 3
    THREAD_STATE = 4
    CALLS = 5


class ForkSafeLock:
    """A lock that a forked child finds free, even if a thread of the parent held it that isn't in the child.

    Reentrant, as a signal handler that records may take it again. What it guards must be consistent whenever a fork comes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Free the lock in a forked child, unless the thread that forked holds it, and goes on with it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class _ForkFunctions(NamedTuple):
    """The functions around a fork, each behind a function that returns it, or None once its object is gone."""

    order: Order
    before: Callable[[], Any]
    in_parent: Callable[[], Any]
    in_child: Callable[[], Any]


_registered: list[_ForkFunctions] = []
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
    global _registered
    functions = _ForkFunctions(
        order, _reference(before), _reference(in_parent), _reference(in_child)
    )
    with _adding:
        living = [
            one for one in _registered if any(reference() is not None for reference in one[1:])
        ]
        # A new list, since a fork may be iterating over the old one.
        _registered = sorted([*living, functions], key=lambda one: one.order)


def _reference(function: Callable[..., object] | None) -> Callable[[], Any]:
    return weakref.WeakMethod(function) if isinstance(function, MethodType) else lambda: function


def _before() -> None:
    deadline = time.monotonic() + FORK_WAIT_SECONDS
    for functions in reversed(_registered):
        _call(functions.before(), deadline)


def _in_parent() -> None:
    for functions in _registered:
        _call(functions.in_parent())


def _in_child() -> None:
    for lock in list(_locks):
        lock.renew()
    for functions in _registered:
        _call(functions.in_child())


def _call(function: Callable[..., object] | None, *arguments: float) -> None:
    try:
        if function is not None:
            function(*arguments)
    except Exception:  # the other functions have to be called all the same
        log.exception("otel-recfn failed around a fork")


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


# --- our threads, at rest during a fork

_FIRST_CODE = getattr(getattr(threading.Thread, "_bootstrap", None), "__code__", None)
"""The first code that a thread of ``threading`` runs."""


class _Gate:
    """The threads of ours that are at work, and the thread that forks."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._at_work: dict[
            int, bool
        ] = {}  # by thread; True if a fork has stopped waiting for this piece of work
        self._forking: set[int] = set()

    def begin_work(self, wait: bool = True) -> bool:
        """Note that the calling thread is at work, once nobody forks; without ``wait``, False if somebody does."""
        with self._changed:
            while wait and self._forking:
                self._changed.wait()
            if not self._forking:
                self._at_work[threading.get_ident()] = False
            return not self._forking

    def is_at_work(self) -> bool:
        """Whether the calling thread is at work."""
        return threading.get_ident() in self._at_work

    def end_work(self) -> bool:
        """End the work of the calling thread; returns whether it was at work."""
        with self._changed:
            was_at_work = self._at_work.pop(threading.get_ident(), None) is not None
            self._changed.notify_all()
            return was_at_work

    def close(self, deadline: float) -> None:
        """Wait until the work that is being done is over, and let only the calling thread work from then on."""
        own = threading.get_ident()

        def may_fork() -> bool:
            return all(late or thread == own for thread, late in self._at_work.items())

        with self._changed:
            self._forking.add(own)
            self._changed.wait_for(may_fork, max(0.0, deadline - time.monotonic()))
            self._at_work = {thread: thread != own for thread in self._at_work}

    def open(self) -> None:
        """Let threads work again after the calling thread has forked."""
        with self._changed:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def start_anew(self) -> None:
        """Start anew in the child, where only the calling thread is, which may be one of ours that forked while at work."""
        own = threading.get_ident()
        self._changed = threading.Condition(threading.RLock())
        self._at_work = {thread: False for thread in self._at_work if thread == own}
        self._forking = set()


_gate = _Gate()
around_forks(Order.OWN_THREADS, before=_gate.close, in_parent=_gate.open, in_child=_gate.start_anew)


class OwnThread(threading.Thread):
    """A daemon thread of ours. Calls that may take a lock, it makes ``at_work()``.

    It must not import anything, since a child may need the module that is half imported; its maker has done that.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        _format_a_traceback()

    def run(self) -> None:
        """Call the target, as the current thread of ours."""
        _current.thread = self
        super().run()

    @property
    def is_current(self) -> bool:
        """Whether it is the calling thread."""
        return current_own_thread() is self

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait for its end. Does nothing if it never started (the start may have failed), has ended, or is the caller."""
        if self.is_alive() and not self.is_current:
            self.join(timeout_s)


_current = threading.local()


def current_own_thread() -> OwnThread | None:
    """The calling thread if it is one of ours, which ``threading`` may not know after gevent replaced threads."""
    found: OwnThread | None = getattr(_current, "thread", None)
    return found


def is_own_thread() -> bool | None:
    """Whether the calling thread is one of ours; None while ``threading`` has just started it and doesn't know it yet."""
    ident = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident == ident:
            return isinstance(thread, OwnThread)
    outermost = sys._getframe()
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return None if outermost.f_code is _FIRST_CODE else False


@contextmanager
def at_work() -> Iterator[None]:
    """A piece of work in a thread of ours, for which a fork waits. Locks that a fork takes are taken before it."""
    _gate.begin_work()
    try:
        yield
    finally:
        _gate.end_work()


@contextmanager
def at_work_unless_forking() -> Iterator[bool]:
    """A piece of work in a thread that isn't ours and holds locks of others: during a fork it yields False and doesn't wait."""
    outer = _gate.is_at_work()
    working = outer or _gate.begin_work(wait=False)
    try:
        yield working
    finally:
        if working and not outer:
            _gate.end_work()


@contextmanager
def resting() -> Iterator[None]:
    """A pause within a piece of work, with no lock held; it changes nothing in a thread that isn't at work."""
    was_at_work = _gate.end_work()
    try:
        yield
    finally:
        if was_at_work:
            _gate.begin_work()


@cache
def _format_a_traceback() -> None:
    """Have Python import what it needs to format a traceback: a thread of ours may log one, and must not import."""
    try:
        raise RuntimeError
    except RuntimeError:
        logging.Formatter().formatException(sys.exc_info())
