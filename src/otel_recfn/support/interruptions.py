"""Whose an error is that was raised while other people's code ran inside ours: that code's own, or
the program's.

It is asked wherever an error ends that was raised in the program's thread: around sinks, in our
API, and where PyTorch, OpenTelemetry or an import calls us. Without it what a signal handler raises
there is lost: of 20 timeouts that struck in the look at the context, in ``attach`` or in
``get_current`` none reached the program, and all do. Threads of ours don't ask, since no signal
handler runs in them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from opcode import opmap
from traceback import walk_tb
from typing import Any

_RAISE = opmap["RAISE_VARARGS"]


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it, such as a timeout's or Ctrl-C's: then it is the
    program's, and goes on to it.

    Any other error of a sink, a sampler, a hook or a log handler is its own and goes no further, of
    whatever class it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread alone
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__)) or _is_ctrl_c(
        error
    )


def _is_ctrl_c(error: BaseException) -> bool:
    """Whether Python's own handler of Ctrl-C raised it.

    That handler is written in C and is in no traceback. It raises wherever Python looks for
    signals, as at the end of a loop or in a call of a C function, and never at a ``raise``
    statement, by which the code of somebody who has no Ctrl-C does.
    """
    innermost = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or innermost is None:
        return False
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != _RAISE


def _code(handler: Any) -> Any:
    handler = getattr(handler, "func", handler)  # functools.partial
    handler = getattr(handler, "__func__", handler)  # a bound method
    if not hasattr(handler, "__code__"):
        handler = vars(type(handler)).get("__call__")  # an object that can be called
    return getattr(handler, "__code__", None)


@contextmanager
def ignoring_errors() -> Iterator[None]:
    """A call of other people's code whose errors go no further, but for what a signal handler
    raises.
    """
    try:
        yield
    except BaseException as error:
        if raised_by_signal_handler(error):
            raise
