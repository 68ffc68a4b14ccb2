"""Threads of ours, which a fork finds at rest.

A forked child has one thread, and inherits every lock that another one held: of logging, of an import, of an exporter. So what
a thread of ours does beside waiting it does ``at_work()``, and a fork waits until none is at work and keeps them at rest:

    thread     ──work──┤ rest ├──work──┤ rest ··········├──work──
    fork                         waits ┤ fork ├ go on ──┘

If a piece of work is not over in time (an exporter that waits for its network, say), later forks don't wait for it again.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from otel_recfn.support.forks import Order, around_forks

_FIRST_CODE = getattr(getattr(threading.Thread, "_bootstrap", None), "__code__", None)
"""What a thread of ``threading`` runs first."""


class _Gate:
    """Which threads of ours are at work, and who forks."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._at_work: dict[int, bool] = {}  # by thread; True where a fork has waited for this piece of work in vain
        self._forking: set[int] = set()

    def begin_work(self, wait: bool = True) -> bool:
        """The calling thread is at work, once nobody forks; without ``wait`` False where somebody does."""
        with self._changed:
            while wait and self._forking:
                self._changed.wait()
            if not self._forking:
                self._at_work[threading.get_ident()] = False
            return not self._forking

    def is_at_work(self) -> bool:
        """Whether the calling thread is."""
        return threading.get_ident() in self._at_work

    def end_work(self) -> bool:
        """Whether the calling thread was at work."""
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
        """The calling thread has forked."""
        with self._changed:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def start_anew(self) -> None:
        """This is the child: only the calling thread is there, which may be one of ours that forked while at work."""
        own = threading.get_ident()
        self._changed = threading.Condition(threading.RLock())
        self._at_work = {thread: False for thread in self._at_work if thread == own}
        self._forking = set()


_gate = _Gate()
around_forks(Order.OWN_THREADS, before=_gate.close, in_parent=_gate.open, in_child=_gate.start_anew)


class OwnThread(threading.Thread):
    """A daemon thread. What it calls that may take a lock, it calls ``at_work()``.

    It must not import anything, since a child may need the module that is half imported: whoever makes it has imported what it
    needs.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        _format_a_traceback()

    def wait_for_end(self, timeout_s: float) -> None:
        """Nothing if it never started (as the start may have failed, or been interrupted), has ended, or is the caller."""
        if self.is_alive() and self is not threading.current_thread():
            self.join(timeout_s)


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
    """Around a piece of work in a thread of ours, which a fork waits for. Locks that a fork takes are taken before."""
    _gate.begin_work()
    try:
        yield
    finally:
        _gate.end_work()


@contextmanager
def at_work_unless_forking() -> Iterator[bool]:
    """The same in a thread that isn't ours and holds locks of others: instead of waiting for a fork it yields False."""
    outer = _gate.is_at_work()
    working = outer or _gate.begin_work(wait=False)
    try:
        yield working
    finally:
        if working and not outer:
            _gate.end_work()


@contextmanager
def resting() -> Iterator[None]:
    """Around a pause amid a piece of work, with no lock held; in a thread that isn't at work it changes nothing."""
    was_at_work = _gate.end_work()
    try:
        yield
    finally:
        if was_at_work:
            _gate.begin_work()


@cache
def _format_a_traceback() -> None:
    """Have Python import now what it needs to format one: a thread of ours may log one, and must not import."""
    try:
        raise RuntimeError
    except RuntimeError:
        logging.Formatter().formatException(sys.exc_info())
