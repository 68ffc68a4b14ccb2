"""The runtime's state in work that other threads and tasks do."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.example_counts import examples
from helpers.recording_helpers import Capture
from helpers.runtime_helpers import Notes, in_thread, pairs, run_range
from helpers.timeouts import PATIENCE_S
from otel_recfn import record_function
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import (
    add_thread_local_callback,
    get_step_callbacks,
    has_thread_local_callbacks,
    remove_callback,
)
from otel_recfn.callbacks.state import (
    PropagatingExecutor,
    PropagatingThread,
    RecordFunctionTLS,
    enable_record_function,
    get_record_function_tls,
    is_record_function_enabled,
    propagate,
)
from otel_recfn.callbacks.thread_locals import DebugInfoGuard, DebugInfoKind, debug_info_get
from otel_recfn.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("runtime")
TEST_INFO = DebugInfoKind.TEST_INFO
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def through_executor(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result()  # the worker is there before the state is
        return PropagatingExecutor(pool).submit(work).result(PATIENCE_S)


def through_map(work: Callable[[], Any]) -> Any:
    with PropagatingExecutor(ThreadPoolExecutor(1)) as pool:
        return next(iter(pool.map(lambda _: work(), [0])))


def through_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = PropagatingThread(target=lambda: results.append(work()))
    thread.start()
    thread.join(PATIENCE_S)
    return results[0]


def through_function(work: Callable[[], Any]) -> Any:
    return in_thread(propagate(work))


WAYS = [through_executor, through_map, through_thread, through_function]


@pytest.mark.parametrize("way", WAYS)
def test_work_in_other_threads_has_the_launching_state_and_context(way: Any, notes: Notes) -> None:
    add_thread_local_callback(notes.callback())
    VARIABLE.set("launching")

    def work() -> list[Any]:
        run_range("there")
        return [debug_info_get(TEST_INFO), VARIABLE.get()]

    with DebugInfoGuard(TEST_INFO, "launching"):
        assert way(work) == ["launching", "launching"]
    assert notes == pairs("there")


@pytest.mark.parametrize("way", WAYS)
def test_the_enclosing_async_range_encloses_work_in_other_threads(
    way: Any, capture: Capture
) -> None:

    async def fetch() -> None:
        async with record_function("fetch"):
            way(lambda: run_range("inside"))

    asyncio.run(fetch())
    capture.finish()
    rows = {row.name: row for row in capture.rows()}
    assert rows["inside"].parent == rows["fetch"].event_id


def test_one_function_may_run_in_many_threads_at_once(notes: Notes) -> None:
    add_thread_local_callback(notes.callback())
    barrier = threading.Barrier(4, timeout=PATIENCE_S)

    def work() -> bool:
        barrier.wait()
        return has_thread_local_callbacks()

    wrapped = propagate(work)
    with ThreadPoolExecutor(4) as pool:
        assert [
            future.result(PATIENCE_S) for future in [pool.submit(wrapped) for _ in range(4)]
        ] == [True] * 4


def test_an_exception_comes_through_unchanged() -> None:
    error = ValueError("x")

    def work() -> None:
        raise error

    with pytest.raises(ValueError, match="x") as raised:
        propagate(work)()
    assert raised.value is error


def test_what_can_not_be_run_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a function or a coroutine, not int"):
        propagate(3)


def test_the_executor_is_shut_down_with_its_wrapper() -> None:
    inner: Executor = ThreadPoolExecutor(1)
    with PropagatingExecutor(inner):
        pass
    with pytest.raises(RuntimeError, match="after shutdown"):
        inner.submit(print)


def test_a_task_has_the_launching_state_in_each_step_and_others_do_not(notes: Notes) -> None:
    async def work(name: str) -> None:
        for step in range(3):
            run_range(f"{name}{step}")
            await asyncio.sleep(0)

    async def main() -> None:
        handle = add_thread_local_callback(notes.callback())
        with_state = asyncio.create_task(propagate(work("with")))
        remove_callback(handle)
        await asyncio.gather(with_state, asyncio.create_task(work("without")))

    asyncio.run(main())
    assert notes == pairs("with0", "with1", "with2")


def test_a_propagated_coroutine_returns_raises_and_is_cancelled_as_before() -> None:
    caught: list[str] = []

    async def work(fail: bool) -> int:
        if fail:
            raise ValueError("x")
        await asyncio.sleep(0)
        return 7

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            caught.append("cancelled")
            raise

    async def main() -> None:
        assert await propagate(work(False)) == 7
        with pytest.raises(ValueError, match="x"):
            await propagate(work(True))
        task = asyncio.create_task(propagate(wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert caught == ["cancelled"]


Step = tuple[int, str]
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["add", "remove", "disable", "enable", "range"])),
    max_size=25,
)


class Model:
    """What one task's state must be."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.enabled = True

    def take(self, step: str) -> None:
        if step == "add":
            self.handles.append(add_thread_local_callback(RecordFunctionCallback(lambda fn: None)))
        elif step == "remove" and self.handles:
            remove_callback(self.handles.pop())
        elif step in ("disable", "enable"):
            self.enabled = step == "enable"
            enable_record_function(self.enabled)
        self.check()

    def check(self) -> None:
        assert is_record_function_enabled() == self.enabled
        assert [
            entry.handle for entry in get_record_function_tls().sorted_tls_callbacks
        ] == self.handles
        running = [pair.handle for pair in get_step_callbacks(0).callbacks]  # type: ignore[arg-type]
        assert running == (self.handles if self.enabled else [])


@examples(60)
@given(steps=STEPS)
def test_tasks_that_take_turns_on_a_thread_never_see_each_others_state(
    runtime: Recorder, steps: list[Step]
) -> None:
    async def one(number: int, turns: list[asyncio.Event], done: asyncio.Event) -> None:
        model = Model()
        own = [step for task, step in steps if task == number]
        for step in own:
            await turns[number].wait()
            turns[number].clear()
            model.take(step)
            done.set()

    async def main() -> None:
        turns = [asyncio.Event() for _ in range(3)]
        done = asyncio.Event()
        tasks = [asyncio.create_task(propagate(one(number, turns, done))) for number in range(3)]
        for number, _ in steps:
            turns[number].set()
            await asyncio.wait(
                [asyncio.create_task(done.wait()), tasks[number]],
                return_when=asyncio.FIRST_COMPLETED,
            )
            done.clear()
            assert get_record_function_tls() == RecordFunctionTLS()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert get_record_function_tls() == RecordFunctionTLS()


@examples(25)
@given(
    before=st.lists(st.sampled_from(["add", "remove", "disable", "enable"]), max_size=8),
    depth=st.integers(1, 4),
)
def test_a_chain_of_threads_hands_the_state_on_whole(
    runtime: Recorder, before: list[str], depth: int
) -> None:
    def launch(left: int) -> list[Any]:
        return [
            get_record_function_tls(),
            *(in_thread(propagate(lambda: launch(left - 1))) if left else []),
        ]

    def first() -> list[Any]:
        model = Model()
        for step in before:
            model.take(step)
        return launch(depth)

    seen = in_thread(first)
    assert len(seen) == depth + 1
    assert all(tls == seen[0] for tls in seen)
