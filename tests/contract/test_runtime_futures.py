"""Ranges that end with a future (source: record_function_ops.cpp)."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from recording_helpers import Capture
from runtime_helpers import FORMS, Notes, pairs

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.operations import (
    call_end_callbacks_on_future,
    record_function_enter,
    record_function_enter_new,
    record_function_exit,
)
from otel_recfn.callbacks.registry import add_thread_local_callback
from otel_recfn.callbacks.thread_locals import DebugInfoGuard, DebugInfoKind, debug_info_get
from patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("runtime")


@FORMS
def test_the_range_ends_when_the_future_completes_before_the_returned_one(enter: Any, own_notes: Notes) -> None:
    future: Future[int] = Future()
    profiled = call_end_callbacks_on_future(enter("load"), future)
    ended: list[bool] = []
    profiled.add_done_callback(lambda _: ended.append(own_notes == pairs("load")))
    assert own_notes == [("start", "load")]
    assert not profiled.done()
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    assert ended == [True]


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
            profiled = call_end_callbacks_on_future(record_function_enter_new("load"), pool.submit(release.wait, 60))
        release.set()
        profiled.result(PATIENCE_S)
        assert pool.submit(debug_info_get, DebugInfoKind.TEST_INFO).result(PATIENCE_S) is None
    assert seen == [("launching", "worker_0")]


def test_a_future_that_completed_already_ends_the_range_at_once(own_notes: Notes) -> None:
    future: Future[int] = Future()
    future.set_result(3)
    assert call_end_callbacks_on_future(record_function_enter_new("load"), future).result(PATIENCE_S) == 3
    assert own_notes == pairs("load")


@FORMS
def test_a_range_that_was_ended_before_leaves_the_future_its_value(enter: Any, own_notes: Notes) -> None:
    future: Future[int] = Future()
    record = enter("load")
    profiled = call_end_callbacks_on_future(record, future)
    record_function_exit(record)
    future.set_result(7)
    assert profiled.result(PATIENCE_S) == 7
    assert own_notes == pairs("load")


def test_the_bare_number_keeps_the_range_until_the_future_completes(own_notes: Notes) -> None:
    future: Future[int] = Future()
    handle = record_function_enter("load")
    profiled = call_end_callbacks_on_future(int(handle), future)
    del handle
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
