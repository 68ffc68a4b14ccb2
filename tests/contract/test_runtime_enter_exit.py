"""Ranges begun and ended by calls (source: record_function_ops.cpp)."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from recording_helpers import Capture
from runtime_helpers import FORMS, USER, Notes, pairs

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.operations import (
    call_end_callbacks_on_future,
    record_function_enter,
    record_function_enter_new,
    record_function_exit,
)
from otel_recfn.callbacks.registry import add_global_callback
from otel_recfn.model.errors import UnknownHandleError

pytestmark = pytest.mark.usefixtures("runtime")


@FORMS
def test_enter_begins_a_user_range_and_exit_ends_it(enter: Any, capture: Capture, own_notes: Notes) -> None:
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
    add_global_callback(RecordFunctionCallback(lambda fn: seen.append(list(fn.inputs()))).needs_inputs(needed))
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


def test_the_legacy_form_ends_when_its_handle_is_dropped_and_the_bare_number_ends_nothing(own_notes: Notes) -> None:
    handle = record_function_enter("dropped")
    number = int(handle)
    del handle
    assert own_notes == pairs("dropped")
    record_function_exit(number)
    assert own_notes == pairs("dropped")


@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, object()])
def test_what_is_no_handle_is_refused_at_the_call(wrong: Any) -> None:
    with pytest.raises(TypeError, match="no handle of a range; pass what record_function_enter"):
        record_function_exit(wrong)
    with pytest.raises(TypeError, match="no handle of a range"):
        call_end_callbacks_on_future(wrong, Future())


@pytest.mark.parametrize("wrong", [0, -1, 1 << 60])
def test_a_number_that_no_enter_returned_is_refused_at_the_call(wrong: int) -> None:
    with pytest.raises(UnknownHandleError, match="no range has the handle"):
        record_function_exit(wrong)
    with pytest.raises(UnknownHandleError):
        call_end_callbacks_on_future(wrong, Future())


def test_a_legacy_handle_may_go_by_its_number_while_somebody_holds_it(own_notes: Notes) -> None:
    handle = record_function_enter("held")
    record_function_exit(int(handle))
    assert own_notes == pairs("held")
