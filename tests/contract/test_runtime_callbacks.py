"""Callbacks: adding, removing, switching, order, also while ranges are open (source:
``at::addGlobalCallback`` and its kin).
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.recording_helpers import Capture
from helpers.runtime_helpers import FUNCTION, USER, Notes, in_thread, pairs, run_range
from otel_recfn import record_function
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import (
    INVALID_CALLBACK_HANDLE,
    add_global_callback,
    add_thread_local_callback,
    clear_callbacks,
    clear_global_callbacks,
    clear_thread_local_callbacks,
    disable_callback,
    get_step_callbacks,
    get_step_callbacks_unless_empty,
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
from otel_recfn.errors import RecfnError, SettingError
from otel_recfn.model.events import RecordScope

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize("add", [add_global_callback, add_thread_local_callback])
def test_what_is_no_callback_is_refused_where_it_is_added(add: Any) -> None:
    with pytest.raises(TypeError, match=r"pass RecordFunctionCallback\(start, end\)"):
        add(print)
    assert not has_callbacks()


def test_what_cannot_be_called_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="start=3 can't be called"):
        RecordFunctionCallback(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="end=3 can't be called"):
        RecordFunctionCallback(None, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="should_run=3 can't be called"):
        RecordFunctionCallback(print).should_run(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="pass a probability"):
        RecordFunctionCallback(print).sampling_prob("often")  # type: ignore[call-overload]


def test_builder_calls_chain_and_read_back() -> None:
    callback = (
        RecordFunctionCallback(print, print)
        .needs_inputs(True)
        .needs_outputs(True)
        .needs_ids(True)
        .sampling_prob(0.25)
        .scopes({USER})
    )
    assert (callback.needs_inputs(), callback.needs_outputs(), callback.needs_ids()) == (
        True,
        True,
        True,
    )
    assert callback.sampling_prob() == 0.25
    assert callback.scopes() == {USER}
    assert (callback.start(), callback.end()) == (print, print)
    assert callback.should_run() is None


def test_a_new_callback_needs_nothing_and_takes_every_scope() -> None:
    callback = RecordFunctionCallback(print)
    assert (callback.needs_inputs(), callback.needs_outputs(), callback.needs_ids()) == (
        False,
        False,
        False,
    )
    assert callback.sampling_prob() == 1.0
    assert all(callback.check_scope(scope) for scope in RecordScope)
    assert callback.end() is None


def test_the_empty_set_of_scopes_means_all() -> None:
    callback = RecordFunctionCallback(print).scopes({USER}).scopes(set())
    assert callback.scopes() == set(RecordScope)


@pytest.mark.parametrize("probability", [-0.001, 1.001, float("nan")])
def test_a_sampling_probability_outside_0_to_1_is_refused(probability: float) -> None:
    callback = RecordFunctionCallback(print)
    with pytest.raises(SettingError, match=r"pass a probability from 0\.0 to 1\.0") as raised:
        callback.sampling_prob(probability)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, RecfnError)
    assert callback.sampling_prob() == 1.0


def test_a_scope_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="is not allowed"):
        RecordFunctionCallback(print).scopes([10])  # type: ignore[list-item]


def test_the_end_gets_the_observer_context_of_its_start() -> None:
    contexts: list[Any] = []
    add_global_callback(
        RecordFunctionCallback(lambda fn: [fn.name()], lambda fn, context: contexts.append(context))
    )
    with RecordFunction() as outer:
        outer.before("outer")
        run_range("inner")
    assert contexts == [["inner"], ["outer"]]


def test_start_and_end_are_each_optional(notes: Notes) -> None:
    add_global_callback(RecordFunctionCallback(lambda fn: notes.append("started")))
    add_global_callback(
        RecordFunctionCallback(None, lambda fn, context: notes.append(("ended", context)))
    )
    run_range("add")
    assert notes == ["started", ("ended", None)]


def test_only_selected_scopes_are_observed(notes: Notes) -> None:
    add_global_callback(notes.callback().scopes({USER}))
    run_range("op", FUNCTION)
    run_range("mine", USER)
    assert notes == pairs("mine")


def test_order_is_global_then_thread_local_each_by_handle(notes: Notes) -> None:
    local = add_thread_local_callback(notes.callback("local"))
    first = add_global_callback(notes.callback("first"))
    second = add_global_callback(notes.callback("second"))
    assert INVALID_CALLBACK_HANDLE < local < first < second
    run_range("op")
    assert [note[2] for note in notes] == ["first", "second", "local"] * 2
    assert [note[0] for note in notes] == ["start"] * 3 + ["end"] * 3


def test_an_added_callback_is_a_copy(notes: Notes) -> None:
    callback = notes.callback()
    add_global_callback(callback)
    callback.scopes({USER})
    run_range("op", FUNCTION)
    assert notes == pairs("op")


def test_a_thread_local_callback_sees_its_thread_alone(notes: Notes) -> None:
    add_thread_local_callback(notes.callback())
    in_thread(lambda: run_range("there"))
    run_range("here")
    assert notes == pairs("here")


def test_step_callbacks_say_what_runs_and_what_it_needs(notes: Notes) -> None:
    add_global_callback(notes.callback().needs_inputs(True))
    add_global_callback(notes.callback().scopes({USER}).needs_outputs(True).needs_ids(True))
    step = get_step_callbacks(FUNCTION)
    assert (len(step.callbacks), step.scope) == (1, FUNCTION)
    assert step.thread_id == RecordFunction.current_thread_id()
    assert (step.needs_inputs, step.needs_outputs, step.needs_ids) == (True, False, False)
    user_step = get_step_callbacks(USER)
    assert (len(user_step.callbacks), user_step.needs_outputs, user_step.needs_ids) == (
        2,
        True,
        True,
    )


def test_step_callbacks_unless_empty(notes: Notes) -> None:
    assert get_step_callbacks_unless_empty(FUNCTION) is None
    assert get_step_callbacks(FUNCTION).empty()
    add_global_callback(notes.callback().scopes({FUNCTION}))
    assert get_step_callbacks_unless_empty(USER) is None
    step = get_step_callbacks_unless_empty(FUNCTION)
    assert step is not None
    range_ = RecordFunction(step)
    range_.before("op")
    range_.end()
    assert notes == pairs("op")


def test_removed_callbacks_run_no_more(notes: Notes) -> None:
    for handle in (
        add_global_callback(notes.callback()),
        add_thread_local_callback(notes.callback()),
    ):
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
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (
        False,
        False,
        False,
    )
    add_thread_local_callback(notes.callback())
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (
        True,
        False,
        True,
    )
    add_global_callback(notes.callback())
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (
        True,
        True,
        True,
    )
    assert in_thread(has_thread_local_callbacks) is False
    clear_thread_local_callbacks()
    assert (has_callbacks(), has_global_callbacks(), has_thread_local_callbacks()) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("clear", "left"),
    [
        (clear_global_callbacks, {"local"}),
        (clear_thread_local_callbacks, {"global"}),
        (clear_callbacks, set()),
    ],
)
def test_clear_removes_what_it_says(notes: Notes, clear: Any, left: set[str]) -> None:
    add_global_callback(notes.callback("global"))
    add_thread_local_callback(notes.callback("local"))
    clear()
    run_range("op")
    assert {note[2] for note in notes} == left


def test_disabled_in_a_thread_neither_callbacks_nor_the_recorder_see_it(
    notes: Notes, capture: Capture
) -> None:
    add_global_callback(notes.callback())
    enable_record_function(False)
    assert not is_record_function_enabled()
    with record_function("hidden"):
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


def fail(*_: Any) -> None:
    raise ZeroDivisionError("the observer's own")


def leave(*_: Any) -> None:
    raise SystemExit("the observer's own")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt("the observer's own")


def fail_the_test(*_: Any) -> None:
    pytest.fail("the observer's own")


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("raises", [fail, leave, interrupt, fail_the_test])
@pytest.mark.parametrize("add", [add_global_callback, add_thread_local_callback])
def test_a_callback_that_raises_is_removed_and_logged_once(
    notes: Notes, caplog: pytest.LogCaptureFixture, where: str, raises: Any, add: Any
) -> None:
    caplog.set_level(logging.WARNING, "otel_recfn")
    broken = (
        RecordFunctionCallback(raises) if where == "start" else RecordFunctionCallback(None, raises)
    )
    add(broken)
    add_global_callback(notes.callback())
    run_range("first")
    run_range("second")
    assert notes == pairs("first", "second")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "raised and was removed (on the range 'first')" in caplog.text
    assert "the observer's own" in caplog.text


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


@pytest.fixture
def ctrl_c() -> Iterator[Callable[..., None]]:
    """Has the user press Ctrl-C in the middle of a callback."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda *_: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_goes_on_and_every_started_callback_ends(
    notes: Notes, capture: Capture, ctrl_c: Callable[..., None]
) -> None:
    add_global_callback(notes.callback())
    handle = add_global_callback(RecordFunctionCallback(ctrl_c))
    with pytest.raises(KeyboardInterrupt):
        run_range("op")
    assert notes == pairs("op")
    remove_callback(handle)
    run_range("after")
    capture.finish()
    assert [(row.name, row.error) for row in capture.rows()] == [
        ("op", "KeyboardInterrupt"),
        ("after", ""),
    ]


def test_after_an_interrupt_the_thread_is_observed_as_before(
    notes: Notes, ctrl_c: Callable[..., None]
) -> None:
    add_global_callback(notes.callback())
    for broken in (RecordFunctionCallback(ctrl_c), RecordFunctionCallback(None, ctrl_c)):
        handle = add_global_callback(broken)
        with pytest.raises(KeyboardInterrupt):
            run_range("interrupted")
        remove_callback(handle)
        notes.clear()
        run_range("after")
        assert notes == pairs("after")


def test_ranges_that_a_callback_begins_reach_no_callback_but_are_recorded(
    notes: Notes, capture: Capture
) -> None:
    def start(fn: RecordFunction) -> None:
        run_range("inside")
        notes.append(fn.name())

    add_global_callback(RecordFunctionCallback(start))
    run_range("op")
    capture.finish()
    assert notes == ["op"]
    rows = {row.name: row for row in capture.rows()}
    assert rows["inside"].parent == rows["op"].event_id
