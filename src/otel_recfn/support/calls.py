"""Refuses a signal handler that starts, stops or flushes captures in the middle of a start, stop or flush of its thread.

The handler's call would go on with what the interrupted one has half done. A sink or a sampler of the program's may make all
three calls: whoever calls it has left everything in a state that allows it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from otel_recfn.model.errors import CallRefused
from otel_recfn.support.forks import Order, around_forks

log = logging.getLogger("otel_recfn")


class _Thread(threading.local):
    running = ""
    """The call that runs in the thread, ``"flush"`` for instance; empty for none."""
    told = False
    """It was logged that another one was refused meanwhile."""


_thread = _Thread()


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Around a start, stop or flush.

    Raises:
        CallRefused: one runs in this thread.
    """
    if _thread.running:
        raise CallRefused(
            f"{name}() was called in the middle of {_thread.running}() in the same thread, as by a signal handler, and did "
            "nothing; call it when the handler has returned"
        )
    _thread.running, _thread.told = name, False
    try:
        yield
    finally:
        _thread.running = ""


def tell(refused: CallRefused) -> None:
    """Log it, once in the call that runs: a logging handler may be who calls, each time."""
    if not _thread.told:
        _thread.told = True
        log.warning("%s", refused)


@contextmanager
def calling_out() -> Iterator[None]:
    """Around a call of what isn't ours, and may make these calls itself."""
    running, _thread.running = _thread.running, ""
    try:
        yield
    finally:
        _thread.running = running


def _in_child() -> None:
    _thread.running = ""  # a handler may have forked, and its child never returns to what it interrupted


around_forks(Order.SESSION, in_child=_in_child)
