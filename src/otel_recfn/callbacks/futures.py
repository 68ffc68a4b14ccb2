"""Ranges that end when a future completes (source: ``_call_end_callbacks_on_fut``).

    the future completes ─► launching thread's state installed ─► end callbacks ─► the returned future completes the same way

The returned future replaces the one that was passed: once it is done, the range has ended. Cancelling it cancels that one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from otel_recfn.callbacks.operations import PythonRecordFunction, find_range
from otel_recfn.callbacks.state import ThreadLocalState, ThreadLocalStateGuard
from otel_recfn.support.texts import failure

F = TypeVar("F")
End: TypeAlias = "Callable[[BaseException | None, Callable[[], None]], None]"
"""Ends the range, which failed with the error, and then completes the returned future."""


def call_end_callbacks_on_future(record: int | PythonRecordFunction, future: F) -> F:
    """End the range when ``future`` completes, with the state that the calling thread has now.

    Args:
        record: what ``record_function_enter`` or ``record_function_enter_new`` returned.
        future: a ``concurrent.futures.Future``, an asyncio future or task (call from its loop's thread), or a
            ``torch.futures.Future``.

    Returns:
        a future of the same library that completes after the end callbacks ran, with the same value, error or cancellation.

    Raises:
        TypeError: ``record`` or ``future`` is none of these.
        UnknownHandleError: a number that no enter has returned.
    """
    end = _ending(record)
    profiled: Any
    if isinstance(future, concurrent.futures.Future):
        profiled = _ProfiledFuture(future, end)
    elif isinstance(future, asyncio.Future):
        profiled = _ProfiledAsyncioFuture(future, end)
    elif (torch := sys.modules.get("torch")) is not None and isinstance(future, torch.futures.Future):
        profiled = _profiled_torch_future(torch, future, end)
    else:
        raise TypeError(f"{type(future).__name__} is not a future of concurrent.futures, asyncio or torch; pass one of these")
    return profiled  # type: ignore[no-any-return]


def _ending(record: int | PythonRecordFunction) -> End:
    """Ends the range, which it holds, with the state of the thread that asked for it."""
    range_, state = find_range(record), ThreadLocalState()

    def end(error: BaseException | None, pass_on: Callable[[], None]) -> None:
        nonlocal range_
        ended, range_ = range_, None
        try:
            if ended is not None:
                with ThreadLocalStateGuard(state):
                    ended.end(*failure(error))
        finally:
            pass_on()

    return end


def _error_of(future: Any) -> BaseException | None:
    try:
        error: BaseException | None = future.exception()
    except (concurrent.futures.CancelledError, asyncio.CancelledError) as cancelled:
        return cancelled
    return error


class _ProfiledFuture(concurrent.futures.Future[Any]):
    def __init__(self, source: concurrent.futures.Future[Any], end: End) -> None:
        super().__init__()
        self._source = source
        source.add_done_callback(lambda source: end(_error_of(source), self._take_over))

    def cancel(self) -> bool:
        return self._source.cancel()

    def running(self) -> bool:
        return self._source.running()

    def _take_over(self) -> None:
        error = _error_of(self._source)
        if isinstance(error, concurrent.futures.CancelledError) and self._source.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._source.result())


class _ProfiledAsyncioFuture(asyncio.Future[Any]):
    def __init__(self, source: asyncio.Future[Any], end: End) -> None:
        super().__init__(loop=source.get_loop())
        self._source = source
        source.add_done_callback(lambda source: end(_error_of(source), self._take_over))

    def cancel(self, msg: Any = None) -> bool:
        return self._source.cancel(msg)

    def _take_over(self) -> None:
        error = _error_of(self._source)
        if isinstance(error, asyncio.CancelledError) and self._source.cancelled():
            super().cancel(*error.args[:1])
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._source.result())


def _profiled_torch_future(torch: Any, source: Any, end: End) -> Any:
    # Not source.then(): it would give the program a RuntimeError with the text of its exception instead of that exception.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else None
    profiled = torch.futures.Future(devices=devices)

    def on_done(source: Any) -> None:
        try:
            value, error = source.value(), None
        except Exception as failure:
            value, error = None, failure

        def take_over() -> None:
            if error is not None:
                profiled.set_exception(error)
            else:
                profiled.set_result(value)

        end(error, take_over)

    source.add_done_callback(on_done)
    return profiled
