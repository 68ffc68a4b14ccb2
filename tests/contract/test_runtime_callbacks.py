"""Callbacks: adding, removing, switching, order (source: ``at::addGlobalCallback`` and its kin)."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_helpers import FUNCTION, USER, Notes, in_thread, pairs, run_range

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import (
    INVALID_CALLBACK_HANDLE,
    add_global_callback,
    add_thread_local_callback,
    get_step_callbacks,
    get_step_callbacks_unless_empty,
    has_callbacks,
)
from otel_recfn.model.errors import RecfnError, SamplingProbabilityError, SettingError
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
    assert (callback.needs_inputs(), callback.needs_outputs(), callback.needs_ids()) == (True, True, True)
    assert callback.sampling_prob() == 0.25
    assert callback.scopes() == {USER}
    assert (callback.start(), callback.end()) == (print, print)
    assert callback.should_run() is None


def test_a_new_callback_needs_nothing_and_takes_every_scope() -> None:
    callback = RecordFunctionCallback(print)
    assert (callback.needs_inputs(), callback.needs_outputs(), callback.needs_ids()) == (False, False, False)
    assert callback.sampling_prob() == 1.0
    assert all(callback.check_scope(scope) for scope in RecordScope)
    assert callback.end() is None


def test_the_empty_set_of_scopes_means_all() -> None:
    callback = RecordFunctionCallback(print).scopes({USER}).scopes(set())
    assert callback.scopes() == set(RecordScope)


@pytest.mark.parametrize("probability", [-0.001, 1.001, float("nan")])
def test_a_sampling_probability_outside_0_to_1_is_refused(probability: float) -> None:
    callback = RecordFunctionCallback(print)
    with pytest.raises(SamplingProbabilityError, match=r"pass a probability from 0\.0 to 1\.0") as raised:
        callback.sampling_prob(probability)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, RecfnError)
    assert callback.sampling_prob() == 1.0


def test_a_scope_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="is not allowed"):
        RecordFunctionCallback(print).scopes([10])  # type: ignore[list-item]


def test_start_and_end_run_as_a_pair(notes: Notes) -> None:
    add_global_callback(notes.callback())
    run_range("add")
    assert notes == pairs("add")


def test_the_end_gets_the_observer_context_of_its_start() -> None:
    contexts: list[Any] = []
    add_global_callback(RecordFunctionCallback(lambda fn: [fn.name()], lambda fn, context: contexts.append(context)))
    with RecordFunction() as outer:
        outer.before("outer")
        run_range("inner")
    assert contexts == [["inner"], ["outer"]]


def test_start_and_end_are_each_optional(notes: Notes) -> None:
    add_global_callback(RecordFunctionCallback(lambda fn: notes.append("started")))
    add_global_callback(RecordFunctionCallback(None, lambda fn, context: notes.append(("ended", context))))
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


def test_a_global_callback_sees_every_thread(notes: Notes) -> None:
    add_global_callback(notes.callback())
    in_thread(lambda: run_range("there"))
    assert notes == pairs("there")


def test_step_callbacks_say_what_runs_and_what_it_needs(notes: Notes) -> None:
    add_global_callback(notes.callback().needs_inputs(True))
    add_global_callback(notes.callback().scopes({USER}).needs_outputs(True).needs_ids(True))
    step = get_step_callbacks(FUNCTION)
    assert (len(step.callbacks), step.scope) == (1, FUNCTION)
    assert step.thread_id == RecordFunction.current_thread_id()
    assert (step.needs_inputs, step.needs_outputs, step.needs_ids) == (True, False, False)
    user_step = get_step_callbacks(USER)
    assert (len(user_step.callbacks), user_step.needs_outputs, user_step.needs_ids) == (2, True, True)


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
