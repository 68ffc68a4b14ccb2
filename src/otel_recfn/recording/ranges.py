"""The Python part of ``record_function``, a type in C: ``async with``, and decorated functions of
every kind.

It calls

    __enter__()                   open_range(self)
                                  -> a handle, if it is observed
    __call__(func)                decorate(type(self), self.name, self.args, func)
                                  -> the decorated function
    __aenter__()                  aenter(self)
                                  -> a coroutine; it gives self
    __aexit__(kind, error, tb)    aexit(self, kind, error, tb)
                                  -> a coroutine; it gives None

and its objects have ``name``, ``args``, ``_code`` (what it decorates, as a text of
``support/code_names.py``, or None) and ``_entered``, None at first, which is private to this file.

``async with`` belongs to a task, not to a place on its thread's stack. Tasks take turns on a
thread, so such a range may end while ranges that began after it are still open: it is asynchronous.
Between ``enter`` and ``leave`` the task is in it. Each call of a decorated function opens a range
of its own:

    def                 from call to return
    async def           from the first step to the end of the coroutine, as ``async with``
    def with yield      from the first ``next`` to exhaustion; asynchronous, because its consumer
                        runs in between
    async with yield    the same

While a generator is suspended, its range encloses nothing. While it runs, its range encloses what
it does, unless its consumer has opened a range or a span since: that began later, so it is the
parent.

``torch.compile`` traces the wrappers, with PyTorch's ``record_function`` in place of ours and
without ranges of generators. ``torch.jit.script`` compiles what is decorated, without the range.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import FunctionType, TracebackType
from typing import Any, TypeAlias, TypeVar, cast

from otel_recfn import _native
from otel_recfn.model.events import EventFlag, EventSource, RecordScope
from otel_recfn.recording import signatures
from otel_recfn.recording.watched import is_traced
from otel_recfn.support.code_names import code_text
from otel_recfn.support.exceptions import failure

USER_SCOPE = int(RecordScope.USER_SCOPE)
SOURCE = int(EventSource.RECORD_FUNCTION)
ASYNC = int(EventFlag.ASYNC)
F = TypeVar("F", bound=Callable[..., Any])
Step = Callable[[], Any]


class RangeHandle:
    """An open range that the recorder alone sees; with event id 0 nobody sees it."""

    __slots__ = ("event_id",)

    def __init__(self, event_id: int) -> None:
        self.event_id = event_id

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """End the range; both as in ``_native.end``."""
        _native.end(self.event_id, error, stacktrace=stacktrace)


RangeObserver: TypeAlias = Callable[[str, "str | None", int, str], Any]
"""A function that opens a range of ``record_function``, from name, ``args``, EventFlag bits, and
what it decorates.

What it returns has the attributes of RangeHandle.
"""


def open_range(range_: Any, flags: int = 0) -> Any:
    """Begin a range of a ``record_function`` object, through the recorder's range observer if
    one is set.
    """
    observer = _native.range_observer()
    if observer is not None:
        return observer(range_.name, range_.args, flags, range_._code or "")
    return record_range(range_.name, flags, range_._code or "")


def record_range(name: str, flags: int, code: str) -> RangeHandle:
    """Begin a range for the recorder alone."""
    return RangeHandle(_native.begin(name, USER_SCOPE, SOURCE, "", flags, code=code))


async def aenter(range_: Any) -> Any:
    """Begin a range and make it the innermost one of this task."""
    handle = open_range(range_, ASYNC)
    if range_._entered is None:
        range_._entered = []
    range_._entered.append((handle, _native.enter(handle.event_id) if handle.event_id else None))
    return range_


async def aexit(
    range_: Any,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    """End the newest range of this object in this task, else the newest of all: many tasks may
    have entered it.
    """
    opened: list[tuple[RangeHandle, Any]] = range_._entered or []
    if not opened:
        return
    in_task = [
        at
        for at, (_, entered) in enumerate(opened)
        if entered is not None and _native.is_in(entered)
    ]
    handle, entered = opened.pop(in_task[-1] if in_task else -1)
    if entered is not None:
        _native.leave(entered)
    handle.end(*failure(error if handle.event_id else None))


def decorate(record_function: Callable[..., Any], name: str, args: str | None, func: F) -> F:
    """``func`` with a range around each call, for which ``record_function`` is called.

    A TypeError if it can't be wrapped.
    """
    _refuse_what_breaks(func)
    make = maker(record_function, name, args, func)
    if is_kind(inspect.isasyncgenfunction, func):
        return cast(F, _wrap_async_generator(make, func))
    if is_kind(inspect.isgeneratorfunction, func):
        return cast(F, _wrap_generator(make, func))
    return wrap(make, func)


def maker(record_function: Any, name: str, args: Any, func: Any) -> Any:
    """A function that makes the range, or step, of a call. torch.compile can trace the type, but
    not the general way.
    """
    traced = functools.partial(record_function, name, args)
    code = code_text(func)
    if not code:
        return traced
    coded = functools.partial(record_function._with_code, name, args, code)

    def make() -> Any:
        return traced() if is_traced() else coded()

    return make


def _refuse_what_breaks(func: Any) -> None:
    if inspect.isclass(func):
        raise TypeError(
            f"record_function decorates functions, and {func.__name__} is a class: decorate its"
            " methods"
        )
    if not callable(func):
        kind = type(func).__name__
        raise TypeError(
            f"record_function decorates functions, and this is a {kind}: put it below @{kind}, next"
            " to the def"
        )


def is_kind(predicate: Callable[[Any], bool], func: Any) -> bool:
    """Whether ``inspect``'s predicate holds for a function, or for the ``__call__`` of another
    object.
    """
    # `callable` would say whether there is a `__call__`; the predicate asks about the function.
    return predicate(func) or predicate(getattr(func, "__call__", None))  # noqa: B004


def wrap(make: Any, func: F) -> F:
    """A function, or a coroutine function, that runs in what ``make`` makes for each call."""
    # torch.jit.script finds the names that the wrapper uses before the program's, so that they are
    # such as no program has.
    new_recfn_range, recfn_decorated = make, func

    @functools.wraps(func)
    def wrapper(*positional: Any, **keywords: Any) -> Any:
        with new_recfn_range():
            return recfn_decorated(*positional, **keywords)

    @functools.wraps(func)
    async def coroutine_wrapper(*positional: Any, **keywords: Any) -> Any:
        async with new_recfn_range():
            return await recfn_decorated(*positional, **keywords)

    if is_kind(inspect.iscoroutinefunction, func):
        return cast(F, coroutine_wrapper)
    return cast(F, _with_same_globals(wrapper, func))


def _with_same_globals(wrapper: Any, func: Any) -> Any:
    """The wrapper with the globals of ``func``.

    ``torch.jit.script`` compiles the source of ``func``, and looks its names up in the wrapper's
    globals.
    """
    if not isinstance(func, FunctionType):
        return wrapper
    made = FunctionType(
        wrapper.__code__, func.__globals__, wrapper.__name__, None, wrapper.__closure__
    )
    return functools.wraps(func)(made)


def _wrap_generator(make: Any, func: Any) -> Any:
    @functools.wraps(func)
    def wrapper(*positional: Any, **keywords: Any) -> Generator[Any, Any, Any]:
        if is_traced():
            return (yield from func(*positional, **keywords))
        generator = func(*positional, **keywords)
        with _ResumedRange(make()) as resumed:
            return (yield from in_steps(generator, resumed.resume))

    return wrapper


def in_steps(work: Any, run: Callable[[Step], Any]) -> Generator[Any, Any, Any]:
    """A generator or coroutine whose steps are each called by ``run``."""
    step: Step = functools.partial(work.send, None)
    while True:
        try:
            item = run(step)
        except StopIteration as stop:
            return stop.value
        try:
            step = functools.partial(work.send, (yield item))
        except GeneratorExit:
            run(work.close)
            raise
        except BaseException as thrown:
            step = functools.partial(work.throw, thrown)


def _wrap_async_generator(make: Any, func: Any) -> Any:
    @functools.wraps(func)
    async def wrapper(*positional: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        generator = func(*positional, **keywords)
        with _ResumedRange(make()) as resumed:
            step: Step = generator.__anext__
            while True:
                try:
                    item = await resumed.resume_async(step)
                except StopAsyncIteration:
                    return
                try:
                    step = functools.partial(generator.asend, (yield item))
                except GeneratorExit:
                    await resumed.resume_async(generator.aclose)
                    raise
                except BaseException as thrown:
                    step = functools.partial(generator.athrow, thrown)

    return wrapper


class _ResumedRange:
    """A range that encloses what its ``resume`` runs, in whichever thread and task, and nothing
    else.
    """

    def __init__(self, range_: Any) -> None:
        self._range = range_

    def __enter__(self) -> _ResumedRange:
        self._handle = open_range(self._range, ASYNC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        self._handle.end(*failure(error if self._handle.event_id else None))

    def resume(self, step: Step) -> Any:
        entered = self._enter()
        try:
            return step()
        finally:
            self._leave(entered)

    async def resume_async(self, step: Step) -> Any:
        entered = self._enter()
        try:
            return await step()
        finally:
            self._leave(entered)

    def _enter(self) -> Any | None:
        return _native.enter(self._handle.event_id) if self._handle.event_id else None

    def _leave(self, entered: Any | None) -> None:
        if entered is not None:
            _native.leave(entered)


_native.set_record_function_helpers(
    decorate=decorate,
    aenter=aenter,
    aexit=aexit,
    failure=failure,
    replacement=signatures.record_function,
)
