"""The handling of forks, in one order that doesn't depend on the order of imports.

    before the fork   SESSION ► OWN_THREADS     what may wait for our threads is stopped before them
    in the parent     OWN_THREADS ► SESSION
    in the child      locks ► OWN_THREADS ► RECORDER ► SPAN_IDS ► SESSION ► THREAD_STATE ► CALLS

A fork waits for all of it together no longer than ``FORK_WAIT_SECONDS``, so that the program is not
held up.

A forked child has one thread, and inherits every lock that another one held: of logging, of an
import, of an exporter. So what a thread of ours does beside waiting it does ``at_work()``, and a
fork waits until none is at work and keeps them at rest:

    thread     ──work──┤ rest ├──work──┤ rest ··········├──work──
    fork                         waits ┤ fork ├ go on ──┘

If a piece of work is not over in time (an exporter that waits for its network, say), later forks
don't wait for it again.

Where C code forks (uWSGI its workers, say), Python calls no handlers. Only the native part starts
empty at once. All else follows with the first use of ours in the child, a range, a flush, a lock,
whatever it is: each calls ``follow_fork``.
"""

from __future__ import annotations

import dis
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from functools import cache
from types import FrameType, MethodType
from typing import Any, NamedTuple

from otel_recfn.support.locks import acquired
from otel_recfn.support.logs import log

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
    """A lock that a forked child finds free, even if a thread of the parent held it that isn't in
    the child.

    Reentrant, as a signal handler that records may take it again. What it guards must be consistent
    whenever a fork comes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(weakref.ref(self, _locks.discard))

    def _lock_here(self) -> threading.RLock:
        if os.getpid() != _followed:
            follow_fork()
        return self._lock

    # A with statement asks for these two first, and then calls the RLock's own, which are in C. In
    # functions of Python's, a signal handler could raise beside the block while the lock is held.

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock_here().__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock_here().__exit__

    def held(self, timeout_s: float) -> AbstractContextManager[bool]:
        """Hold the lock, if it can be had in so many seconds. Gives whether it is held."""
        return acquired(self._lock_here(), timeout_s)

    def renew(self) -> None:
        """Free the lock in a forked child, unless the thread that forked holds it, and goes on
        with it.
        """
        with acquired(self._lock, 0.0) as is_free:
            pass
        if not is_free:
            self._lock = threading.RLock()


_locks: set[weakref.ref[ForkSafeLock]] = set()


class _ForkFunctions(NamedTuple):
    """The functions around a fork, each behind a function that returns it, or None once its
    object is gone.
    """

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


class _Child:
    """A forked child, in which one thread does what is to be done there."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.has_begun = False


has_parent_threads = False
"""Whether CPython still has states of the parent's threads here, as C code has forked this
process.
"""
_followed = os.getpid()
"""The process in which all was done that is to be done in a child."""
_children: dict[int, _Child] = {}
"""This child by its process id.

Ancestors may stand there, too, whose locks may never become free here.
"""


def follow_fork() -> None:
    """Do what is to be done in a child, once, if this is one that C code has forked.

    The child's other threads wait meanwhile, as they would use what is the parent's.
    """
    global has_parent_threads
    if os.getpid() != _followed and not _gate.is_forking():
        has_parent_threads = True
        _in_child()


def _in_child() -> None:
    global _followed, _children
    process = os.getpid()
    child = _children.setdefault(process, _Child())
    # The thread that does the work may wait for a lock that this one holds. So this one goes on
    # then.
    with acquired(child.lock, FORK_WAIT_SECONDS) as is_held:
        if not is_held or child.has_begun:
            return
        child.has_begun = True
        _children = {process: child}
        for reference in list(_locks):
            if (lock := reference()) is not None:
                lock.renew()
        for functions in _registered:
            _call(functions.in_child())
        _followed = process


def _in_python_child() -> None:
    global has_parent_threads
    has_parent_threads = False
    _in_child()


def _call(function: Callable[..., object] | None, *arguments: float) -> None:
    try:
        if function is not None:
            function(*arguments)
    except Exception:  # the other functions have to be called all the same
        log.exception("otel-recfn failed around a fork")


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_python_child)


# --- our threads, at rest during a fork

_FIRST_CODE = getattr(getattr(threading.Thread, "_bootstrap", None), "__code__", None)
"""The first code that a thread of ``threading`` runs."""
_PREPARATION = getattr(getattr(threading.Thread, "_bootstrap_inner", None), "__code__", None)
"""The code that makes a thread known to ``threading``, sets its profile function, and calls
``run``.
"""


class _Gate:
    """The threads of ours that are at work, and the thread that forks."""

    def __init__(self) -> None:
        # Taken itself: a Condition takes it in functions of Python's, as said at ``ForkSafeLock``.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # By thread; True if a fork has stopped waiting for this piece of work.
        self._at_work: dict[int, bool] = {}
        self._forking: set[int] = set()

    def begin_work(self, wait: bool = True) -> bool:
        """Note that the calling thread is at work, once nobody forks; without ``wait``, False if
        somebody does.
        """
        with self._lock:
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
        with self._lock:
            was_at_work = self._at_work.pop(threading.get_ident(), None) is not None
            self._changed.notify_all()
            return was_at_work

    def close(self, deadline: float) -> None:
        """Wait until the work that is being done is over, and let only the calling thread work
        from then on.
        """
        own = threading.get_ident()

        def may_fork() -> bool:
            return all(late or thread == own for thread, late in self._at_work.items())

        with self._lock:
            self._forking.add(own)
            self._changed.wait_for(may_fork, max(0.0, deadline - time.monotonic()))
            self._at_work = {thread: thread != own for thread in self._at_work}

    def is_forking(self) -> bool:
        """Whether the calling thread forks by Python's means, so that Python calls our handler."""
        return threading.get_ident() in self._forking

    def open(self) -> None:
        """Let threads work again after the calling thread has forked."""
        with self._lock:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def start_anew(self) -> None:
        """Start anew in the child, where only the calling thread is, which may be one of ours
        that forked while at work.
        """
        own = threading.get_ident()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._at_work = {thread: False for thread in self._at_work if thread == own}
        self._forking = set()


_gate = _Gate()
around_forks(Order.OWN_THREADS, before=_gate.close, in_parent=_gate.open, in_child=_gate.start_anew)


class OwnThread(threading.Thread):
    """A daemon thread of ours. Calls that may take a lock, it makes ``at_work()``.

    It must not import anything, since a child may need the module that is half imported; its maker
    has done that.
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
        """Wait for its end.

        Does nothing if it never started (the start may have failed), has ended, or is the caller.
        """
        if self.is_alive() and not self.is_current:
            self.join(timeout_s)


_current = threading.local()


def _become_programs_thread() -> None:
    # A span processor, an exporter or a sink may fork in a thread of ours. What the child does
    # there is the program's work, which is recorded and flushed like any other.
    _current.thread = None


around_forks(Order.OWN_THREADS, in_child=_become_programs_thread)


def current_own_thread() -> OwnThread | None:
    """The calling thread if it is one of ours, which ``threading`` may not know after gevent
    replaced threads.
    """
    found: OwnThread | None = getattr(_current, "thread", None)
    return found


@cache
def _run_instruction() -> int:
    """The first instruction of ``_PREPARATION`` that belongs to the call of ``run``; 0 where
    there is none.
    """
    instructions = dis.get_instructions(_PREPARATION) if _PREPARATION is not None else ()
    return next((each.offset for each in instructions if each.argval == "run"), 0)


def is_own_thread() -> bool | None:
    """Whether the calling thread is one of ours; None while ``threading`` prepares it, or a fork is
    under way.

    A thread is known before its preparation is over. Then it sets the profile function that is to
    trace it: if it were traced already, that call would be shown, in this thread and not in others.
    """
    follow_fork()
    if os.getpid() != _followed:
        # Python has forked, and its handlers are still to come: until then the lock for the list of
        # threads may be one that another thread of the parent's held.
        return None
    frame: FrameType | None = sys._getframe()
    outermost = frame
    while frame is not None:
        if frame.f_code is _PREPARATION and frame.f_lasti < _run_instruction():
            return None
        outermost, frame = frame, frame.f_back
    ident = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident == ident:
            return isinstance(thread, OwnThread)
    return None if outermost is not None and outermost.f_code is _FIRST_CODE else False


@contextmanager
def at_work() -> Iterator[None]:
    """A piece of work in a thread of ours, for which a fork waits.

    Locks that a fork takes are taken before it.
    """
    _gate.begin_work()
    try:
        yield
    finally:
        _gate.end_work()


@contextmanager
def at_work_unless_forking() -> Iterator[bool]:
    """A piece of work in a thread that isn't ours and holds locks of others: during a fork it
    yields False and doesn't wait.
    """
    follow_fork()
    outer = _gate.is_at_work()
    working = outer or _gate.begin_work(wait=False)
    try:
        yield working
    finally:
        if working and not outer:
            _gate.end_work()


@contextmanager
def resting() -> Iterator[None]:
    """A pause within a piece of work, with no lock held; it changes nothing in a thread that
    isn't at work.
    """
    was_at_work = _gate.end_work()
    try:
        yield
    finally:
        if was_at_work:
            _gate.begin_work()


@cache
def _format_a_traceback() -> None:
    """Have Python import what it needs to format a traceback: a thread of ours may log one, and
    must not import.
    """
    try:
        raise RuntimeError
    except RuntimeError:
        logging.Formatter().formatException(sys.exc_info())
