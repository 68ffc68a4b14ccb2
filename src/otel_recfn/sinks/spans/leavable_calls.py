"""Calls that nobody has to wait for any longer when the process ends.

A call is made in a thread of its own, which is left behind where it hangs. The caller's locks are then free again: an exporter
that hangs with spans of ours would otherwise keep the batch span processor from exporting the program's.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from otel_recfn.support.own_thread import OwnThread
from otel_recfn.support.waker import Waker

LAST_SECONDS = 0.2
"""So long a call is waited for that is made when the process ends already: what sends something has sent it then."""


class CallLeft(Exception):
    """The call is not back, and is not waited for."""


class LeavableCalls:
    """Makes calls, of several threads at once, until they are left."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._left = False

    def make(self, function: Callable[[], Any]) -> Any:
        """What the function returns or raises.

        Raises:
            CallLeft: see ``leave``.
        """
        call = _Call(function)
        self._calls.append(call)
        try:
            call.start()
            if self._left:
                call.leave_after(LAST_SECONDS)
            return call.result()
        finally:
            self._calls.remove(call)

    def leave(self) -> None:
        """Wait for none that is being made, and from now on for each ``LAST_SECONDS`` at most."""
        self._left = True
        for call in list(self._calls):
            call.leave()


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._context, self._function = copy_context(), function
        self._waker, self._patience = Waker(), math.inf
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_over = self._is_left = False

    def start(self) -> None:
        """In a thread of its own, or in this one where there can be none."""
        try:
            OwnThread(self._run, f"otel-recfn exports for {threading.current_thread().name}").start()
        except (RuntimeError, MemoryError):
            self._run()

    def _run(self) -> None:
        try:
            self._result = self._context.run(self._function)
        except BaseException as error:
            self._error = error
        self._is_over = True
        self._waker.wake()

    def leave_after(self, seconds: float) -> None:
        self._patience = seconds

    def leave(self) -> None:
        self._is_left = True
        self._waker.wake()

    def result(self) -> Any:
        while not self._is_over:
            woken = self._waker.wait(self._patience)
            if not self._is_over and (self._is_left or not woken):
                raise CallLeft
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result
