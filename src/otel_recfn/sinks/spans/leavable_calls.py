"""Calls that nobody has to wait for any longer when the process ends.

A call is made in a thread of its own, which is left behind where it hangs. The caller's locks are then free again: an exporter
that hangs with spans of ours would otherwise keep the batch span processor from exporting the program's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotInTime
from contextvars import copy_context
from typing import Any

from otel_recfn.support.own_thread import OwnThread

LAST_SECONDS = 0.2
"""So long a call is waited for that is made when the process ends already: what sends something has sent it then."""


class CallLeft(Exception):
    """The call is not back, and is not waited for."""


class LeavableCalls:
    """Makes calls, of several threads at once, until they are left."""

    def __init__(self) -> None:
        self._calls: list[Future[Any]] = []
        self._left = False

    def make(self, function: Callable[[], Any]) -> Any:
        """What the function returns or raises.

        Raises:
            CallLeft: see ``leave``.
        """
        call: Future[Any] = Future()
        self._calls.append(call)
        try:
            _start(call, function)
            return call.result(LAST_SECONDS if self._left else None)
        except NotInTime:
            if call.done():
                return call.result()  # which may raise one of its own
            raise CallLeft from None
        finally:
            self._calls.remove(call)

    def leave(self) -> None:
        """Wait for none that is being made, and from now on for each ``LAST_SECONDS`` at most."""
        self._left = True
        for call in list(self._calls):
            with contextlib.suppress(InvalidStateError):  # it is back
                call.set_exception(CallLeft())


def _start(call: Future[Any], function: Callable[[], Any]) -> None:
    """In a thread of its own, or in this one where there can be none."""
    context = copy_context()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # it was left
            try:
                result = context.run(function)
            except BaseException as error:
                call.set_exception(error)
            else:
                call.set_result(result)

    try:
        OwnThread(run, f"otel-recfn exports for {threading.current_thread().name}").start()
    except RuntimeError:
        run()
