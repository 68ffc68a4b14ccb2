"""The state that a thread passes to the work it launches: captured in one thread and installed in
another.

    RecordFunctionGuard(enabled)     RecordFunction on or off in the calling thread
    ThreadLocalState()               the state of the calling thread
    ThreadLocalStateGuard(state)     installs it in another one
    propagate(function)              for any pool, callback or thread; if async, for each task
    propagate(coroutine)             asyncio.create_task(propagate(work()))
    PropagatingExecutor(executor)    a concurrent.futures executor of threads
    PropagatingThread(...)           a threading.Thread

Two things are passed on. First the ``ThreadLocalState``: callbacks, the enabled flag and debug
info, which belong to a thread. Second, to other threads, a copy of the launching contextvars
context, because the current span and the enclosing ``async with record_function`` belong to a task.
asyncio gives each task such a copy itself. But a thread runs many tasks in turns, so the
thread-local state is installed around each step of the coroutine, and what the step changed in it
is kept for the next step.

(source: ``at::RecordFunctionTLS``, ``at::ThreadLocalState``, ``at::wrapPropagateTLSState``)
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, TypeVar, cast

from otel_recfn import _native
from otel_recfn.callbacks import registry, thread_locals
from otel_recfn.callbacks.callback import Entries
from otel_recfn.callbacks.thread_locals import (
    current_debug_info,
    inherited_info,
    is_record_function_enabled,
    set_current_debug_info,
)
from otel_recfn.pytorch import details
from otel_recfn.recording.ranges import in_steps

T = TypeVar("T")


def enable_record_function(enable: bool = True) -> None:
    """Switch RecordFunction on or off in this thread.

    While it is off, neither callbacks nor the recorder see what it does.

    With torch imported it is PyTorch's own switch (``torch.autograd._enable_record_function``),
    which PyTorch's profilers obey too, and which PyTorch hands on to what works for the thread.
    """
    if bool(enable) == is_record_function_enabled() == _native.thread_enabled():
        return
    _native.set_thread_enabled(bool(enable))
    switch = details.find("thread_switch") if "torch.autograd" in sys.modules else None
    if switch is not None:
        switch(bool(enable))


class RecordFunctionGuard:
    """``with RecordFunctionGuard(enabled):`` switches RecordFunction in this thread, and back on
    leaving.

    Guards nest.
    """

    def __init__(self, is_enabled: bool = True) -> None:
        self._enabled = is_enabled
        self._before: list[bool] = []

    def __enter__(self) -> RecordFunctionGuard:
        self._before.append(is_record_function_enabled())
        enable_record_function(self._enabled)
        return self

    def __exit__(self, *_error: object) -> None:
        enable_record_function(self._before.pop())


class DisableRecordFunctionGuard(RecordFunctionGuard):
    """``with DisableRecordFunctionGuard():`` hides this thread from observers."""

    def __init__(self) -> None:
        super().__init__(False)


class RecordFunctionTLS(NamedTuple):
    """A thread's callbacks, in the order of their handles, and whether RecordFunction is enabled
    in it.
    """

    sorted_tls_callbacks: Entries = ()
    tls_record_function_enabled: bool = True


def get_record_function_tls() -> RecordFunctionTLS:
    """The calling thread's callbacks and flag."""
    return RecordFunctionTLS(registry.thread_entries(), is_record_function_enabled())


def set_record_function_tls(tls: RecordFunctionTLS) -> None:
    """Give the calling thread these callbacks and this flag. Callbacks keep their handles."""
    registry.install(tls.sorted_tls_callbacks)
    enable_record_function(tls.tls_record_function_enabled)


def set_record_function_seed_for_testing(seed: int) -> None:
    """Make the calling thread's sampling repeatable."""
    registry.seed(seed)


class ThreadLocalState:
    """A snapshot of the calling thread: its callbacks, its flag, its debug info, and the graph that
    it traces into.

    What the thread changes later isn't in it. It is for what the thread launches, which inherits
    the debug info.
    """

    __slots__ = ("_debug_info", "_tls", "_tracer")

    def __init__(self) -> None:
        self._tls = get_record_function_tls()
        self._debug_info = inherited_info(current_debug_info())
        self._tracer = thread_locals.current().tracer

    @classmethod
    def to_restore(cls) -> ThreadLocalState:
        """The snapshot for the calling thread itself: what it pushed is still its own then."""
        state = cls()
        state._debug_info = current_debug_info()
        return state

    def set_thread_local_state(self) -> None:
        """Give the calling thread this state (source:
        ``ThreadLocalState::setThreadLocalState``).
        """
        set_record_function_tls(self._tls)
        set_current_debug_info(self._debug_info)
        thread_locals.current().tracer = self._tracer


class ThreadLocalStateGuard:
    """``with ThreadLocalStateGuard(state):`` gives the thread that state, and its own back on
    leaving.

    Guards nest.
    """

    __slots__ = ("_before", "_state")

    def __init__(self, state: ThreadLocalState) -> None:
        self._state = state
        self._before: list[ThreadLocalState] = []

    def __enter__(self) -> ThreadLocalStateGuard:
        self._before.append(ThreadLocalState.to_restore())
        self._state.set_thread_local_state()
        return self

    def __exit__(self, *_error: object) -> None:
        self._before.pop().set_thread_local_state()


# --- work that runs elsewhere


def propagate(work: T) -> T:
    """A wrapper of ``work``, a function or a coroutine, that runs it with the calling thread's
    state as it is now.

    A function may be called any number of times, from many threads at once.
    """
    state = ThreadLocalState()
    if inspect.iscoroutine(work):
        return cast(T, _run_steps(work, state))
    if not callable(work):
        kind = type(work).__name__
        raise TypeError(
            f"propagate takes a function or a coroutine, not {kind}; call it where the work is"
            " launched"
        )
    context = contextvars.copy_context()

    def run(*args: Any, **kwargs: Any) -> Any:
        with ThreadLocalStateGuard(state):
            return work(*args, **kwargs)

    @functools.wraps(work)
    def in_context_copy(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(run, *args, **kwargs)  # a context can't be entered twice at once

    @functools.wraps(work)
    async def in_task_steps(*args: Any, **kwargs: Any) -> Any:
        return await _stepped(work(*args, **kwargs), state)

    return cast(T, in_task_steps if inspect.iscoroutinefunction(work) else in_context_copy)


async def _run_steps(work: Coroutine[Any, Any, Any], state: ThreadLocalState) -> Any:
    return await _stepped(work, state)


@types.coroutine
def _stepped(work: Coroutine[Any, Any, Any], state: ThreadLocalState) -> Generator[Any, Any, Any]:
    """A coroutine with a state of its own, which is installed around each step."""

    def run(step: Callable[[], Any]) -> Any:
        nonlocal state
        with ThreadLocalStateGuard(state):
            try:
                return step()
            finally:
                state = ThreadLocalState.to_restore()

    return (yield from in_steps(work, run))


class PropagatingExecutor(Executor):
    """An executor that hands work to another one, to run with the state of the thread that
    submitted it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have the work run with the calling thread's state."""
        return self._executor.submit(propagate(fn), *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down the executor that runs the work."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


class PropagatingThread(threading.Thread):
    """A thread with the state of the thread that starts it."""

    def start(self) -> None:
        """Start with the calling thread's state."""
        self.run = propagate(self.run)  # type: ignore[method-assign]
        super().start()
