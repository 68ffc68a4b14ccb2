"""Functions that begin a range in one call, as PyTorch's macros do, or end one, as PyTorch's
``record_function`` operators do.

    with record_user_scope("load batch"):
        ...
    with record_function_with_inputs("my::matmul", (a, b), sequence_nr=7) as range_:
        record_outputs(range_, [matmul(a, b)])

Inputs are passed on only where somebody needs them. Where nobody observes, the range is not active.
``fn`` is a name or an operator's schema; see ``RecordFunction.before``.

    legacy   handle = record_function_enter(name, args)       a number: the key to the range,
                                                              which is held until it ends
    new      record = record_function_enter_new(name, args)   an object that is the range
    both     record_function_exit(handle_or_record)
             call_end_callbacks_on_future(handle_or_record, future)

(sources: record_function.h, record_function_ops.cpp)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.state import ThreadLocalState, ThreadLocalStateGuard
from otel_recfn.errors import UnknownHandleError
from otel_recfn.model.events import RecordScope
from otel_recfn.support.exceptions import failure

F = TypeVar("F")


def record_function_with_scope(
    scope: RecordScope, fn: Any, inputs: Sequence[Any] = (), sequence_nr: int = -1
) -> RecordFunction:
    """A range of any scope (source: RECORD_FUNCTION_WITH_SCOPE)."""
    return _begin_range(RecordFunction(scope), fn, inputs, sequence_nr)


def record_function_with_scope_inputs_outputs(
    scope: RecordScope,
    fn: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    sequence_nr: int = -1,
) -> RecordFunction:
    """A range of any scope whose outputs are known already (source:
    RECORD_FUNCTION_WITH_SCOPE_INPUTS_OUTPUTS).
    """
    range_ = record_function_with_scope(scope, fn, inputs, sequence_nr)
    record_outputs(range_, outputs)
    return range_


def record_function_with_inputs(
    fn: Any, inputs: Sequence[Any] = (), sequence_nr: int = -1
) -> RecordFunction:
    """A range of scope FUNCTION (source: RECORD_FUNCTION)."""
    return record_function_with_scope(RecordScope.FUNCTION, fn, inputs, sequence_nr)


def record_function_with_inputs_outputs(
    fn: Any, inputs: Sequence[Any], outputs: Sequence[Any], sequence_nr: int = -1
) -> RecordFunction:
    """A range of scope FUNCTION with outputs (source: RECORD_FUNCTION_WITH_INPUTS_OUTPUTS)."""
    return record_function_with_scope_inputs_outputs(
        RecordScope.FUNCTION, fn, inputs, outputs, sequence_nr
    )


def record_torchscript_function(fn: Any, inputs: Sequence[Any] = ()) -> RecordFunction:
    """A range of scope TORCHSCRIPT_FUNCTION (source: RECORD_TORCHSCRIPT_FUNCTION)."""
    return record_function_with_scope(RecordScope.TORCHSCRIPT_FUNCTION, fn, inputs)


def record_user_scope(fn: Any, inputs: Sequence[Any] = ()) -> RecordFunction:
    """A range of scope USER_SCOPE (source: RECORD_USER_SCOPE, RECORD_USER_SCOPE_WITH_INPUTS)."""
    return record_function_with_scope(RecordScope.USER_SCOPE, fn, inputs)


def record_with_scope_debug_handle_and_inputs(
    scope: RecordScope,
    fn: Any,
    debug_handle: int,
    inputs: Sequence[Any] = (),
    sequence_nr: int = -1,
) -> RecordFunction:
    """A range with a debug handle (source: RECORD_WITH_SCOPE_DEBUG_HANDLE_AND_INPUTS)."""
    range_ = RecordFunction(scope)
    range_.set_debug_handle(debug_handle)
    return _begin_range(range_, fn, inputs, sequence_nr)


def record_edge_scope_with_debug_handle_and_inputs(
    fn: Any, debug_handle: int, inputs: Sequence[Any] = ()
) -> RecordFunction:
    """A range of scope LITE_INTERPRETER (source:
    RECORD_EDGE_SCOPE_WITH_DEBUG_HANDLE_AND_INPUTS).
    """
    return record_with_scope_debug_handle_and_inputs(
        RecordScope.LITE_INTERPRETER, fn, debug_handle, inputs
    )


def record_outputs(range_: RecordFunction, outputs: Sequence[Any]) -> None:
    """Give a range its outputs, if a callback needs them (source: RECORD_OUTPUTS)."""
    if range_.needs_outputs():
        range_.set_outputs(list(outputs))


def _begin_range(
    range_: RecordFunction, fn: Any, inputs: Sequence[Any], sequence_nr: int = -1
) -> RecordFunction:
    range_.before(fn, inputs if range_.needs_inputs() else (), sequence_nr=sequence_nr)
    return range_


# --- enter and exit

_numbers = itertools.count(1)


class LegacyHandle(int):
    """A number that stands for a range; the range ends at the latest when the last reference to
    it is dropped.
    """

    record: RecordFunction


class PythonRecordFunction:
    """A range as an object; it ends at the latest when the last reference to it is dropped."""

    __slots__ = ("record",)

    def __init__(self, scope: RecordScope = RecordScope.USER_SCOPE) -> None:
        self.record = RecordFunction(scope)


def record_function_enter(name: str, args: str | None = None) -> int:
    """Begin a user range, with ``args`` as its only input. Returns the handle that ends it."""
    handle = LegacyHandle(next(_numbers))
    handle.record = RecordFunction(RecordScope.USER_SCOPE)
    _begin_range(handle.record, name, () if args is None else (args,))
    return handle


def record_function_enter_new(name: str, args: str | None = None) -> PythonRecordFunction:
    """Begin a user range, with ``args`` as its only input. Returns the object that ends it."""
    entered = PythonRecordFunction()
    _begin_range(entered.record, name, () if args is None else (args,))
    return entered


def record_function_exit(record: int | PythonRecordFunction) -> None:
    """End a range that was entered. Does nothing if it has ended."""
    _open_range(record).end()


def _open_range(record: int | PythonRecordFunction) -> RecordFunction:
    if isinstance(record, (PythonRecordFunction, LegacyHandle)):
        return record.record
    if isinstance(record, int) and not isinstance(record, bool):
        raise UnknownHandleError(
            f"the number {record} alone is no range; pass what record_function_enter() returned"
        )
    kind = type(record).__name__
    raise TypeError(
        f"{kind} is no handle of a range; pass what record_function_enter() or"
        " record_function_enter_new() gave"
    )


# --- ranges that end when a future completes (source: ``_call_end_callbacks_on_fut``)

End: TypeAlias = "Callable[[BaseException | None, Callable[[], None]], None]"
"""A function that ends the range, with its error if it failed, and then completes the returned
future.
"""


def call_end_callbacks_on_future(record: int | PythonRecordFunction, future: F) -> F:
    """End the range when ``future`` completes, with the state that the calling thread has now.

    The returned future replaces the one that was passed: once it is done, the range has ended.
    Cancelling it cancels that one.

    Args:
        record: what ``record_function_enter`` or ``record_function_enter_new`` returned.
        future: a ``concurrent.futures.Future``, an asyncio future or task (call from its loop's
            thread), or a future of PyTorch's, also one that ``then``, ``collect_all``,
            ``torch.jit.fork`` or a collective returned. What is returned is one, too (of PyTorch's:
            a ``torch.futures.Future``), with the same value, error or cancellation.
    """
    end = _ending(record)
    profiled: Any
    if isinstance(future, concurrent.futures.Future):
        profiled = _ProfiledFuture(future, end)
    elif isinstance(future, asyncio.Future):
        profiled = _ProfiledAsyncioFuture(future, end, loop=future.get_loop())
    elif (torch := sys.modules.get("torch")) is not None and isinstance(future, torch._C.Future):
        profiled = _profiled_torch_future(torch, future, end)
    else:
        raise TypeError(
            f"{type(future).__name__} is not a future of concurrent.futures, asyncio or torch; pass"
            " one of these"
        )
    return profiled  # type: ignore[no-any-return]


def _ending(record: int | PythonRecordFunction) -> End:
    """A function that ends the range, which it holds, with the thread-local state of the thread
    that asked for it.
    """
    range_ = _open_range(record)
    state = ThreadLocalState()
    range_._set_async()

    def end(error: BaseException | None, pass_on: Callable[[], None]) -> None:
        try:
            with ThreadLocalStateGuard(state):
                range_.end(*failure(error))
        finally:
            pass_on()

    return end


class _Profiled:
    """The part of a returned future that follows the one which was passed.

    Cancelling it cancels that one.
    """

    def __init__(self, source: Any, end: End, **future_options: Any) -> None:
        super().__init__(**future_options)
        self._source = source
        source.add_done_callback(lambda source: end(_future_error(source), self._copy_result))

    def cancel(self, *message: Any, **named: Any) -> bool:
        return bool(self._source.cancel(*message, **named))

    def _copy_result(self) -> None:
        future: Any = super()
        if self._source.cancelled():
            future.cancel(*_future_error(self._source).args[:1])
        elif (error := self._source.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(self._source.result())


class _ProfiledFuture(_Profiled, concurrent.futures.Future[Any]):
    def running(self) -> bool:
        return bool(self._source.running())

    def _copy_result(self) -> None:
        super()._copy_result()
        if self.cancelled():
            self.set_running_or_notify_cancel()


class _ProfiledAsyncioFuture(_Profiled, asyncio.Future[Any]):
    pass


def _future_error(future: Any) -> Any:
    """The error of a future that is done; cancellation counts as one."""
    try:
        return future.exception()
    except (concurrent.futures.CancelledError, asyncio.CancelledError) as cancelled:
        return cancelled


def _profiled_torch_future(torch: Any, source: Any, end: End) -> Any:
    # Not source.then(): it would give the program a RuntimeError with the text of its exception
    # instead of that exception.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else None
    profiled = torch.futures.Future(devices=devices)

    def on_done(source: Any) -> None:
        error: Exception | None = None
        try:
            pass_on = partial(profiled.set_result, source.value())
        except Exception as failed:
            error = failed
            pass_on = partial(profiled.set_exception, failed)
        # Not in the handler: the exception would be current in the callbacks that this calls.
        end(error, pass_on)

    source.add_done_callback(on_done)
    return profiled
