"""Rules for the program's signal handlers, which Python runs in the middle of our code: what they may raise and call.

A handler that starts, stops or flushes captures during a start, stop or flush of its thread is refused, since that call is half
done. Sinks and samplers of the program's may make all three calls: before they are called, nothing is half done.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from otel_recfn.errors import CallRefused
from otel_recfn.support.forks import Order, around_forks

log = logging.getLogger("otel_recfn")


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
            f"{name}() was called in the middle of {_thread.running}() in the same thread, as by a signal handler, and did "
            "nothing; call it when the handler has returned"
        )
    _thread.running, _thread.logged = name, False
    try:
        yield
    finally:
        _thread.running = ""


def log_refused(refused: CallRefused) -> None:
    """Log a refused call, once in the call that runs, since a logging handler may be what calls each time."""
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
    _thread.running = (
        ""  # a handler may have forked, and its child never returns to what it interrupted
    )


around_forks(Order.SESSION, in_child=_in_child)


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a handler that is set now (a timeout's, say) is in the error's traceback: then the error is the program's."""
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread alone
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _code(handler: Any) -> Any:
    handler = getattr(handler, "func", handler)  # functools.partial
    handler = getattr(handler, "__func__", handler)  # a bound method
    if not hasattr(handler, "__code__"):
        handler = vars(type(handler)).get("__call__")  # an object that can be called
    return getattr(handler, "__code__", None)
