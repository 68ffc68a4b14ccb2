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


def _code(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # functools.partial
    handler = getattr(handler, "__func__", handler)  # a bound method
    if not hasattr(handler, "__code__"):
        handler = vars(type(handler)).get("__call__")  # an object that can be called
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
