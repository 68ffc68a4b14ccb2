"""Rules for the program's signal handlers, which Python runs in the middle of our code: what they
may raise and call.

A handler that starts, stops or flushes captures during a start, stop or flush of its thread is
refused, since that call is half done. Sinks and samplers of the program's may make all three calls:
before they are called, nothing is half done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otel_recfn.errors import CallRefused
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.logs import log


class _Thread(threading.local):
    running = ""
    """The call that runs in the thread, ``"flush"`` for instance; empty for none."""
    logged = False
    """Whether it was logged that another call was refused meanwhile."""


_thread = _Thread()


@contextmanager
def calling(name: str) -> Iterator[None]:
    """A start, stop or flush of this thread; a CallRefused if one runs in it."""
    if _thread.running:
        raise CallRefused(
            f"{name}() was called in the middle of {_thread.running}() in the same thread, as by a"
            " signal handler, and did nothing; call it when the handler has returned"
        )
    _thread.running, _thread.logged = name, False
    try:
        yield
    finally:
        _thread.running = ""


def log_refused(refused: CallRefused) -> None:
    """Log a refused call, once in the call that runs, since a logging handler may be what calls
    each time.
    """
    if not _thread.logged:
        _thread.logged = True
        log.warning("%s", refused)


@contextmanager
def calling_out() -> Iterator[None]:
    """A call of what isn't ours, and may make these calls itself."""
    running, _thread.running = _thread.running, ""
    try:
        yield
    finally:
        _thread.running = running


def _in_child() -> None:
    # A handler may have forked, and its child never returns to what it interrupted.
    _thread.running = ""


around_forks(Order.SESSION, in_child=_in_child)
