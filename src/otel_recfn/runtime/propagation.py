"""Work that runs elsewhere, with the state of the thread that launched it (source: ``at::wrapPropagateTLSState``).

    propagate(function)              for any pool, callback or thread; of an async function: for each of its tasks
    propagate(coroutine)             asyncio.create_task(propagate(work()))
    PropagatingExecutor(executor)    a concurrent.futures executor of threads
    PropagatingThread(...)           a threading.Thread

Two things are passed on. First the ``ThreadLocalState``: callbacks, the enabled flag and debug info, which belong to a thread.
Second, to other threads, a copy of the launching contextvars context, because the current span and the enclosing ``async with
record_function`` belong to a task. asyncio gives each task such a copy itself. But a thread runs many tasks in turns, so the
thread-local state is installed around each step of the coroutine, and what the step changed in it is kept for the next step.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, cast

from otel_recfn.runtime.state import ThreadLocalState, ThreadLocalStateGuard

T = TypeVar("T")


def propagate(work: T) -> T:
    """``work``, a function or a coroutine, to be run with the calling thread's state as it is now.

    A function may be called any number of times, from many threads at once.

    Raises:
        TypeError: it is neither.
    """
    state = ThreadLocalState()
    if inspect.iscoroutine(work):
        return cast(T, _run_steps(work, state))
    if inspect.iscoroutinefunction(work):
        return cast(T, _wrap_coroutine_function(work, state))
    if callable(work):
        return cast(T, _wrap_function(work, state))
    raise TypeError(f"propagate takes a function or a coroutine, not {type(work).__name__}; call it where the work is launched")


class PropagatingExecutor(Executor):
    """An executor whose work has the state of the thread that submitted it.

    Args:
        executor: runs the work, in threads of this process.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor.submit."""
        return self._executor.submit(propagate(fn), *args, **kwargs)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """See Executor.map."""
        return self._executor.map(propagate(fn), *iterables, timeout=timeout, chunksize=chunksize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See Executor.shutdown: shuts down the executor that runs the work."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


class PropagatingThread(threading.Thread):
    """A thread with the state of the thread that starts it."""

    def start(self) -> None:
        """See Thread.start."""
        self.run = propagate(self.run)  # type: ignore[method-assign]
        super().start()


def _wrap_function(work: Callable[..., Any], state: ThreadLocalState) -> Callable[..., Any]:
    context = contextvars.copy_context()

    def run(*args: Any, **kwargs: Any) -> Any:
        with ThreadLocalStateGuard(state):
            return work(*args, **kwargs)

    @functools.wraps(work)
    def in_copy_of_context(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(run, *args, **kwargs)  # a context can't be entered twice at once

    return in_copy_of_context


def _wrap_coroutine_function(work: Callable[..., Any], state: ThreadLocalState) -> Callable[..., Any]:
    @functools.wraps(work)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await _Steps(work(*args, **kwargs), state)

    return run


async def _run_steps(work: Coroutine[Any, Any, Any], state: ThreadLocalState) -> Any:
    return await _Steps(work, state)


class _Steps:
    """Awaits a coroutine with a state of its own."""

    def __init__(self, work: Coroutine[Any, Any, Any], state: ThreadLocalState) -> None:
        self._work, self._state = work, state

    def __await__(self) -> Generator[Any, Any, Any]:
        step = functools.partial(self._work.send, None)
        while True:
            try:
                awaited = self._take(step)
            except StopIteration as stop:
                return stop.value
            try:
                step = functools.partial(self._work.send, (yield awaited))
            except GeneratorExit:
                self._take(self._work.close)
                raise
            except BaseException as thrown:
                step = functools.partial(self._work.throw, thrown)

    def _take(self, step: Callable[[], Any]) -> Any:
        with ThreadLocalStateGuard(self._state):
            try:
                return step()
            finally:
                self._state = ThreadLocalState()
