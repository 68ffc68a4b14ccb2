"""Callbacks that raise, and signals that come while one runs: the program goes on, the other callbacks run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from recording_helpers import Capture
from runtime_helpers import Notes, pairs, run_range

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import (
    add_global_callback,
    add_thread_local_callback,
    has_callbacks,
    remove_callback,
)

pytestmark = pytest.mark.usefixtures("runtime")


def fail(*_: Any) -> None:
    raise ZeroDivisionError("the observer's own")


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("add", [add_global_callback, add_thread_local_callback])
def test_a_callback_that_raises_is_removed_and_logged_once(
    notes: Notes, caplog: pytest.LogCaptureFixture, where: str, add: Any
) -> None:
    caplog.set_level(logging.WARNING, "otel_recfn")
    broken = RecordFunctionCallback(fail) if where == "start" else RecordFunctionCallback(None, fail)
    add(broken)
    add_global_callback(notes.callback())
    run_range("first")
    run_range("second")
    assert notes == pairs("first", "second")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "was removed" in caplog.text
    assert "the observer's own" in caplog.text


def test_the_end_of_a_failed_start_does_not_run(notes: Notes) -> None:
    add_global_callback(RecordFunctionCallback(fail, lambda fn, context: notes.append("end")))
    run_range("op")
    assert notes == []


def test_open_ranges_of_a_callback_that_failed_call_it_no_more() -> None:
    calls: list[str] = []

    def start(fn: RecordFunction) -> None:
        calls.append(fn.name())
        if fn.name() == "inner":
            raise ValueError("inner")

    add_global_callback(RecordFunctionCallback(start, lambda fn, context: calls.append("end")))
    with RecordFunction() as outer:
        outer.before("outer")
        run_range("inner")
    assert calls == ["outer", "inner"]


def test_the_last_callback_that_fails_leaves_none() -> None:
    add_global_callback(RecordFunctionCallback(fail))
    run_range("op")
    assert not has_callbacks()


def test_keyboard_interrupt_goes_on_and_every_started_callback_ends(notes: Notes, capture: Capture) -> None:
    def interrupt(fn: RecordFunction) -> None:
        raise KeyboardInterrupt

    add_global_callback(notes.callback())
    handle = add_global_callback(RecordFunctionCallback(interrupt))
    with pytest.raises(KeyboardInterrupt):
        run_range("op")
    assert notes == pairs("op")
    remove_callback(handle)
    run_range("after")
    capture.finish()
    assert [(row.name, row.error) for row in capture.rows()] == [("op", "KeyboardInterrupt"), ("after", "")]


def test_after_an_interrupt_the_thread_is_observed_as_before(notes: Notes) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    add_global_callback(notes.callback())
    for broken in (RecordFunctionCallback(interrupt), RecordFunctionCallback(None, interrupt)):
        handle = add_global_callback(broken)
        with pytest.raises(KeyboardInterrupt):
            run_range("interrupted")
        remove_callback(handle)
        notes.clear()
        run_range("after")
        assert notes == pairs("after")


def test_ranges_that_a_callback_begins_reach_no_callback_but_are_recorded(notes: Notes, capture: Capture) -> None:
    def start(fn: RecordFunction) -> None:
        run_range("inside")
        notes.append(fn.name())

    add_global_callback(RecordFunctionCallback(start))
    run_range("op")
    capture.finish()
    assert notes == ["op"]
    rows = {row.name: row for row in capture.rows()}
    assert rows["inside"].parent == rows["op"].event_id


def test_a_callback_cannot_end_the_program(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    def leave(fn: Any) -> None:
        raise SystemExit(3)

    add_global_callback(RecordFunctionCallback(leave))
    add_global_callback(notes.callback())
    run_range("a")
    run_range("b")
    assert notes == pairs("a", "b")
    assert caplog.text.count("raised and was removed") == 1


def test_the_log_names_the_range_on_which_a_callback_raised(caplog: pytest.LogCaptureFixture) -> None:
    add_global_callback(RecordFunctionCallback(lambda fn: 1 / 0))
    add_global_callback(RecordFunctionCallback(None, lambda fn, context: 1 / 0))
    run_range("load batch")
    assert caplog.text.count("raised and was removed (on the range 'load batch')") == 2
