"""``@record_function("name")`` on functions of every kind. Each call opens a range of its own.

    def                 from call to return
    async def           from the first step to the end of the coroutine, as ``async with``
    def with yield      from the first ``next`` to exhaustion; asynchronous, because its consumer runs in between
    async with yield    the same

While a generator is suspended, its range encloses nothing. While it runs, its range encloses what it does, unless its consumer
has opened a range or a span since: that began later, so it is the parent.

``torch.compile`` traces these wrappers, with PyTorch's ``record_function`` in place of ours and without ranges of generators.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar, cast

from otel_recfn import _native
from otel_recfn.ranges.async_range import ASYNC, UserRange, open_range
from otel_recfn.ranges.tracing import is_traced
from otel_recfn.support.texts import code_text, failure

F = TypeVar("F", bound=Callable[..., Any])
Step = Callable[[], Any]


def decorate(record_function: Callable[..., Any], name: str, args: str | None, func: F) -> F:
    """``func`` with a range around each call.

    Args:
        record_function: the type; each call makes an object of it.
        name: of the ranges.
        args: passed on to ``record_function``.
        func: a function of any kind.

    Raises:
        TypeError: ``func`` can't be wrapped.
    """
    _refuse_what_breaks(func)
    make = maker(record_function, name, args, func)
    if is_of_kind(inspect.isasyncgenfunction, func):
        return cast(F, _wrap_async_generator(make, func))
    if is_of_kind(inspect.isgeneratorfunction, func):
        return cast(F, _wrap_generator(make, func))
    return wrap(make, func)


def maker(record_function: Any, name: str, args: Any, func: Any) -> Any:
    """What makes the range, or step, of a call. torch.compile knows how to trace the type, and nothing of the other way."""
    traced, code = functools.partial(record_function, name, args), code_text(func)
    if not code:
        return traced
    coded = functools.partial(record_function._of_code, name, args, code)

    def make() -> Any:
        return traced() if is_traced() else coded()

    return make


def _refuse_what_breaks(func: Any) -> None:
    if inspect.isclass(func):
        raise TypeError(f"record_function decorates functions, and {func.__name__} is a class: decorate its methods")
    if not callable(func):
        kind = type(func).__name__
        raise TypeError(f"record_function decorates functions, and this is a {kind}: put it below @{kind}, next to the def")


def is_of_kind(predicate: Callable[[Any], bool], func: Any) -> bool:
    """Whether ``inspect``'s predicate holds for a function, or for the ``__call__`` of another object."""
    return predicate(func) or predicate(getattr(func, "__call__", None))  # noqa: B004 - we need the function, not whether there is one


def wrap(make: Any, func: F) -> F:
    """A function, or a coroutine's, with what ``make`` makes around each call."""

    @functools.wraps(func)
    def wrapper(*positional: Any, **keywords: Any) -> Any:
        with make():
            return func(*positional, **keywords)

    @functools.wraps(func)
    async def coroutine_wrapper(*positional: Any, **keywords: Any) -> Any:
        async with make():
            return await func(*positional, **keywords)

    return cast(F, coroutine_wrapper if is_of_kind(inspect.iscoroutinefunction, func) else wrapper)


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
    """A range that encloses what its ``resume`` runs, in whichever thread and task that is, and nothing else."""

    def __init__(self, range_: UserRange) -> None:
        self._range = range_

    def __enter__(self) -> _ResumedRange:
        self._handle = open_range(self._range, ASYNC)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
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
