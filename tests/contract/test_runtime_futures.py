"""Ranges begun and ended by calls, and those that end with a future (source:
record_function_ops.cpp).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from helpers.recording_helpers import ASYNC, Capture
from helpers.runtime_helpers import FORMS, USER, Notes, pairs
from helpers.timeouts import PATIENCE_S
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.operations import (
    call_end_callbacks_on_future,
    record_function_enter,
    record_function_enter_new,
    record_function_exit,
)
from otel_recfn.callbacks.registry import add_global_callback, add_thread_local_callback
from otel_recfn.callbacks.thread_locals import DebugInfoGuard, DebugInfoKind, debug_info_get
from otel_recfn.errors import UnknownHandleError

pytestmark = pytest.mark.usefixtures("runtime")


@FORMS
def test_enter_begins_a_user_range_and_exit_ends_it(
    enter: Any, capture: Capture, own_notes: Notes
) -> None:
    record = enter("load")
    assert own_notes == [("start", "load")]
    record_function_exit(record)
    assert own_notes == pairs("load")
    capture.finish()
    assert [(row.name, row.scope) for row in capture.rows()] == [("load", USER)]


@FORMS
@pytest.mark.parametrize("needed", [True, False])
def test_args_are_an_input_only_where_inputs_are_needed(enter: Any, needed: bool) -> None:
    seen: list[Any] = []
    add_global_callback(
        RecordFunctionCallback(lambda fn: seen.append(list(fn.inputs()))).needs_inputs(needed)
    )
    record_function_exit(enter("load", "batch 7"))
    record_function_exit(enter("load"))
    assert seen == [["batch 7"] if needed else [], []]


@FORMS
def test_where_nobody_observes_enter_and_exit_do_nothing(enter: Any) -> None:
    record = enter("load")
    seen: list[Any] = []
    add_global_callback(RecordFunctionCallback(seen.append, lambda fn, context: seen.append(fn)))
    record_function_exit(record)
    assert seen == []


@FORMS
def test_a_range_may_be_ended_twice(enter: Any, own_notes: Notes) -> None:
    record = enter("twice")
    record_function_exit(record)
    record_function_exit(record)
    assert own_notes == pairs("twice")


def test_the_new_form_ends_when_it_is_dropped(own_notes: Notes) -> None:
    record_function_enter_new("dropped")
    assert own_notes == pairs("dropped")


def test_the_legacy_form_ends_when_its_handle_is_dropped(own_notes: Notes) -> None:
    handle = record_function_enter("dropped")
    assert own_notes == [("start", "dropped")]
    del handle
    assert own_notes == pairs("dropped")


@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, object()])
def test_what_is_no_handle_is_refused_at_the_call(wrong: Any) -> None:
    with pytest.raises(TypeError, match="no handle of a range; pass what record_function_enter"):
        record_function_exit(wrong)
    with pytest.raises(TypeError, match="no handle of a range"):
        call_end_callbacks_on_future(wrong, Future())


def test_a_number_alone_is_refused_at_the_call(own_notes: Notes) -> None:
    handle = record_function_enter("held")
    with pytest.raises(UnknownHandleError, match="alone is no range"):
        record_function_exit(int(handle))
    with pytest.raises(UnknownHandleError):
        call_end_callbacks_on_future(int(handle), Future())
    assert own_notes == [("start", "held")]


@FORMS
def test_the_range_ends_when_the_future_completes_before_the_returned_one(
    enter: Any, own_notes: Notes
) -> None:
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(enter("load"), future)
    ended: list[bool] = []
    profiled.add_done_callback(lambda _: ended.append(own_notes == pairs("load")))
    assert own_notes == [("start", "load")]
    assert not profiled.done()
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    assert ended == [True]


@FORMS
def test_the_range_is_asynchronous_in_its_end_callback_and_its_row(
    enter: Any, capture: Capture
) -> None:
    seen: list[bool] = []
    add_global_callback(
        RecordFunctionCallback(None, lambda fn, context: seen.append(fn.is_async()))
    )
    future: Future[int] = Future()
    call_end_callbacks_on_future(enter("load"), future)
    future.set_result(7)
    record_function_exit(enter("plain"))
    assert seen == [True, False]
    assert {row.name: bool(row.flags & ASYNC) for row in capture.finish()} == {
        "load": True,
        "plain": False,
    }


def test_an_error_comes_through_unchanged_and_marks_the_row(capture: Capture) -> None:
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    error = ValueError("x")
    future.set_exception(error)
    assert profiled.exception(60) is error
    capture.finish()
    assert [row.error for row in capture.rows()] == ["ValueError: x"]


def test_a_cancelled_future_cancels_the_returned_one(own_notes: Notes) -> None:
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    future.cancel()
    assert profiled.cancelled()
    assert own_notes == pairs("load")


def test_cancelling_the_returned_future_cancels_the_other(own_notes: Notes) -> None:
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    assert profiled.cancel()
    assert future.cancelled()
    assert own_notes == pairs("load")


def test_work_that_runs_is_not_cancelled_by_its_returned_future() -> None:
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    assert profiled.running()
    assert not profiled.cancel()
    future.set_result(1)
    assert profiled.result(PATIENCE_S) == 1


def test_the_launching_state_is_installed_in_the_callback() -> None:
    seen: list[Any] = []

    def end(fn: Any, context: Any) -> None:
        seen.append((debug_info_get(DebugInfoKind.TEST_INFO), threading.current_thread().name))

    add_thread_local_callback(RecordFunctionCallback(None, end))
    release = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="worker") as pool:
        with DebugInfoGuard(DebugInfoKind.TEST_INFO, "launching"):
            profiled = call_end_callbacks_on_future(
                record_function_enter_new("load"), pool.submit(release.wait, 60)
            )
        release.set()
        profiled.result(PATIENCE_S)
        assert pool.submit(debug_info_get, DebugInfoKind.TEST_INFO).result(PATIENCE_S) is None
    assert seen == [("launching", "worker_0")]


def test_a_future_that_completed_already_ends_the_range_at_once(own_notes: Notes) -> None:
    future: Future[int] = Future()
    future.set_result(3)
    assert (
        call_end_callbacks_on_future(record_function_enter_new("load"), future).result(PATIENCE_S)
        == 3
    )
    assert own_notes == pairs("load")


@FORMS
def test_a_range_that_was_ended_before_leaves_the_future_its_value(
    enter: Any, own_notes: Notes
) -> None:
    future: Future[int] = Future()
    record = enter("load")
    profiled = call_end_callbacks_on_future(record, future)
    record_function_exit(record)
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    assert own_notes == pairs("load")


def test_the_future_keeps_the_range_until_it_completes(own_notes: Notes) -> None:
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(record_function_enter("load"), future)
    assert own_notes == [("start", "load")]
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    assert own_notes == pairs("load")


def test_an_end_callback_that_raises_changes_nothing_for_the_future(capture: Capture) -> None:
    add_thread_local_callback(RecordFunctionCallback(None, lambda fn, context: 1 / 0))
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    capture.finish()
    assert [row.name for row in capture.rows()] == ["load"]


def test_what_is_no_future_is_refused() -> None:
    with pytest.raises(TypeError, match="pass one of these"):
        call_end_callbacks_on_future(record_function_enter_new("load"), 7)


def run(main: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 60))


@FORMS
def test_a_task_ends_its_range_and_gives_its_value(enter: Any, own_notes: Notes) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def work() -> int:
            await release.wait()
            return 7

        profiled = call_end_callbacks_on_future(enter("load"), asyncio.create_task(work()))
        await asyncio.sleep(0)
        assert own_notes == [("start", "load")]
        release.set()
        assert await profiled == 7
        assert own_notes == pairs("load")

    run(main)


def test_an_asyncio_future_gives_its_error_unchanged() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
        error = ValueError("x")
        future.set_exception(error)
        with pytest.raises(ValueError, match="x") as raised:
            await profiled
        assert raised.value is error

    run(main)


async def awaited(future: Any) -> None:
    await future


@pytest.mark.parametrize("wait", [awaited, asyncio.gather, asyncio.wait_for])
def test_cancelling_who_waits_cancels_the_work_and_ends_the_range(
    wait: Any, own_notes: Notes
) -> None:
    async def main() -> None:
        work = asyncio.create_task(asyncio.Event().wait())
        profiled = call_end_callbacks_on_future(record_function_enter_new("load"), work)
        given = (profiled, 60) if wait is asyncio.wait_for else (profiled,)
        waiting = asyncio.ensure_future(wait(*given))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert work.cancelled()
        assert profiled.cancelled()
        assert own_notes == pairs("load")

    run(main)


def test_a_range_that_was_ended_before_leaves_the_asyncio_future_its_value() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        handle = record_function_enter("load")
        profiled = call_end_callbacks_on_future(handle, future)
        record_function_exit(handle)
        future.set_result(1)
        assert await profiled == 1

    run(main)


@pytest.mark.torch
@FORMS
def test_a_torch_future_ends_its_range_and_gives_its_value(enter: Any, own_notes: Notes) -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    profiled = call_end_callbacks_on_future(enter("load"), future)
    assert own_notes == [("start", "load")]
    assert not profiled.done()
    future.set_result(value := ["loaded"])
    assert profiled.wait() is value
    assert own_notes == pairs("load")


@pytest.mark.torch
def test_a_torch_future_gives_its_error_unchanged(own_notes: Notes) -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    error = ValueError("x")
    future.set_exception(error)
    with pytest.raises(ValueError, match="x") as raised:
        profiled.wait()
    assert raised.value is error
    assert own_notes == pairs("load")


@pytest.mark.torch
def test_a_range_that_was_ended_before_leaves_the_torch_future_its_value() -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    handle = record_function_enter("load")
    profiled = call_end_callbacks_on_future(handle, future)
    record_function_exit(handle)
    future.set_result(1)
    assert profiled.wait() == 1


def fork_of(torch: Any) -> Any:
    return torch.jit.fork(torch.neg, torch.ones(1))


def then_of(torch: Any) -> Any:
    done = torch.futures.Future()
    done.set_result(1)
    return done.then(lambda future: future.value())


def all_of(torch: Any) -> Any:
    return torch.futures.collect_all([then_of(torch), then_of(torch)])


@pytest.mark.torch
@pytest.mark.parametrize("make", [then_of, all_of, fork_of])
@pytest.mark.filterwarnings("ignore:.*jit.fork:DeprecationWarning")
def test_any_future_of_torch_ends_its_range_and_gives_its_value(
    make: Any, own_notes: Notes
) -> None:
    torch = pytest.importorskip("torch")
    future = make(torch)
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), future)
    assert type(profiled.wait()) is type(future.wait())
    assert [note for note in own_notes if note[1] == "load"] == pairs("load")


@pytest.mark.torch
def test_a_future_that_waits_for_another_ends_its_range_with_it_and_gives_its_error(
    own_notes: Notes,
) -> None:
    torch = pytest.importorskip("torch")
    future = torch.futures.Future()
    waiting = future.then(lambda done: done.value())
    profiled = call_end_callbacks_on_future(record_function_enter_new("load"), waiting)
    assert own_notes == [("start", "load")]
    future.set_exception(ValueError("x"))
    with pytest.raises(RuntimeError, match="ValueError: x"):
        profiled.wait()
    assert own_notes == pairs("load")
