"""Callbacks that are removed, disabled and cleared, also while ranges are open; guards that disable all."""

from __future__ import annotations

from typing import Any

import pytest
from recording_helpers import Capture
from runtime_helpers import Notes, in_thread, pairs, run_range

from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import (
    INVALID_CALLBACK_HANDLE,
    add_global_callback,
    add_thread_local_callback,
    clear_callbacks,
    clear_global_callbacks,
    clear_thread_local_callbacks,
    disable_callback,
    has_callbacks,
    has_global_callbacks,
    has_thread_local_callbacks,
    reenable_callback,
    remove_callback,
)
from otel_recfn.callbacks.state import (
    DisableRecordFunctionGuard,
    RecordFunctionGuard,
    enable_record_function,
    is_record_function_enabled,
)

pytestmark = pytest.mark.usefixtures("runtime")


def test_removed_callbacks_run_no_more(notes: Notes) -> None:
    for handle in (add_global_callback(notes.callback()), add_thread_local_callback(notes.callback())):
        remove_callback(handle)
    run_range("op")
    assert notes == []
    assert not has_callbacks()


def test_a_callback_removed_while_its_range_is_open_still_gets_the_end(notes: Notes) -> None:
    handle = add_global_callback(notes.callback())
    range_ = RecordFunction()
    range_.before("op")
    remove_callback(handle)
    range_.end()
    assert notes == pairs("op")


def test_a_callback_added_while_a_range_is_open_gets_no_end_without_start(notes: Notes) -> None:
    range_ = RecordFunction()
    range_.before("op")
    add_global_callback(notes.callback())
    range_.end()
    assert notes == []


def test_another_threads_callback_is_not_this_ones_to_remove(notes: Notes) -> None:
    handle = add_thread_local_callback(notes.callback())
    in_thread(lambda: remove_callback(handle))
    run_range("op")
    assert notes == pairs("op")


@pytest.mark.parametrize("change", [remove_callback, disable_callback, reenable_callback])
@pytest.mark.parametrize("handle", [INVALID_CALLBACK_HANDLE, 10**15, -1])
def test_with_an_unknown_handle_nothing_happens(notes: Notes, change: Any, handle: int) -> None:
    add_global_callback(notes.callback())
    change(handle)
    run_range("op")
    assert notes == pairs("op")


@pytest.mark.parametrize("add", [add_global_callback, add_thread_local_callback])
def test_disabled_until_reenabled(notes: Notes, add: Any) -> None:
    handle = add(notes.callback())
    disable_callback(handle)
    run_range("unseen")
    assert not has_callbacks()
    reenable_callback(handle)
    run_range("seen")
    assert notes == pairs("seen")


def test_has_says_which_are_there(notes: Notes) -> None:
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (False, False, False)
    add_thread_local_callback(notes.callback())
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (True, False, True)
    add_global_callback(notes.callback())
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (True, True, True)
    assert in_thread(has_thread_local_callbacks) is False
    clear_thread_local_callbacks()
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (True, True, False)


@pytest.mark.parametrize(
    ("clear", "left"),
    [(clear_global_callbacks, {"local"}), (clear_thread_local_callbacks, {"global"}), (clear_callbacks, set())],
)
def test_clear_removes_what_it_says(notes: Notes, clear: Any, left: set[str]) -> None:
    add_global_callback(notes.callback("global"))
    add_thread_local_callback(notes.callback("local"))
    clear()
    run_range("op")
    assert {note[2] for note in notes} == left


def test_disabled_in_a_thread_neither_callbacks_nor_the_recorder_see_it(notes: Notes, capture: Capture) -> None:
    add_global_callback(notes.callback())
    enable_record_function(False)
    assert not is_record_function_enabled()
    with capture.recorder.record_function("hidden"):
        run_range("hidden")
    in_thread(lambda: run_range("seen elsewhere"))
    enable_record_function()
    run_range("seen")
    capture.finish()
    assert notes == pairs("seen elsewhere", "seen")
    assert {row.name for row in capture.rows()} == {"seen elsewhere", "seen"}


def test_guards_nest_and_restore() -> None:
    with DisableRecordFunctionGuard():
        assert not is_record_function_enabled()
        with RecordFunctionGuard():
            assert is_record_function_enabled()
            with RecordFunctionGuard(False):
                assert not is_record_function_enabled()
            assert is_record_function_enabled()
        assert not is_record_function_enabled()
    assert is_record_function_enabled()


def test_a_guard_restores_when_an_exception_leaves_it() -> None:
    with pytest.raises(ValueError, match="x"), DisableRecordFunctionGuard():
        raise ValueError("x")
    assert is_record_function_enabled()
