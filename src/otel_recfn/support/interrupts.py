"""Tells exceptions of the program's signal handlers, which Python runs in the middle of our code, from our own."""

from __future__ import annotations

import signal
import threading
from types import CodeType
from typing import Any


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a handler that is set now (a timeout's, say) stands in the error's traceback."""
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread alone
    handlers = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def interruption_before(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """What a signal handler raised (an interrupt from the keyboard, say): ``error`` itself, or what it came of; None: nothing.

    Python's own locks raise a RuntimeError where a handler raises as they are let go.

    Args:
        error: what was caught.
        handled: what was being handled already (``sys.exc_info()[1]``) before what was tried.
    """
    found: BaseException | None = error
    while found is not None and found is not handled:
        if not isinstance(found, Exception) or raised_by_signal_handler(found):
            return found
        found = found.__context__
    return None


def _code(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # functools.partial
    handler = getattr(handler, "__func__", handler)  # a bound method
    if not hasattr(handler, "__code__"):
        handler = vars(type(handler)).get("__call__")  # an object that can be called
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
