"""What stands for RecordFunction's macros."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_helpers import FUNCTION, USER, observe

from otel_recfn.callbacks import operations as helpers
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import add_global_callback
from otel_recfn.model.events import RecordScope

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize(
    ("begin", "scope"),
    [
        (lambda: helpers.record_function_with_inputs("add", [1]), FUNCTION),
        (lambda: helpers.record_function_with_scope(RecordScope.CUSTOM_CLASS, "add", [1]), RecordScope.CUSTOM_CLASS),
        (lambda: helpers.record_torchscript_function("add", [1]), RecordScope.TORCHSCRIPT_FUNCTION),
        (lambda: helpers.record_user_scope("add", [1]), USER),
        (lambda: helpers.record_edge_scope_with_debug_handle_and_inputs("add", -1, [1]), RecordScope.LITE_INTERPRETER),
    ],
)
def test_helpers_begin_a_range_of_their_scope_with_inputs(begin: Any, scope: RecordScope) -> None:
    seen = observe(lambda fn: (fn.name(), fn.scope(), list(fn.inputs())))
    with begin():
        pass
    assert seen == [("add", scope, [1])]


def test_helpers_take_sequence_number_and_debug_handle() -> None:
    seen = observe(lambda fn: (fn.seq_nr(), fn.debug_handle()))
    helpers.record_with_scope_debug_handle_and_inputs(FUNCTION, "add", 7, [1], sequence_nr=3).end()
    helpers.record_function_with_inputs("add", [1], sequence_nr=4).end()
    assert seen == [(3, 7), (4, -1)]


@pytest.mark.parametrize("needed", [True, False])
def test_helpers_pass_outputs_where_they_are_needed(needed: bool) -> None:
    seen: list[Any] = []
    add_global_callback(RecordFunctionCallback(None, lambda fn, context: seen.append(list(fn.outputs()))).needs_outputs(needed))
    helpers.record_function_with_inputs_outputs("add", [1], [2]).end()
    helpers.record_function_with_scope_inputs_outputs(USER, "add", [1], [3]).end()
    with helpers.record_user_scope("add") as range_:
        helpers.record_outputs(range_, (4,))
    assert seen == ([[2], [3], [4]] if needed else [[], [], []])


def test_helpers_pass_no_inputs_that_nobody_needs() -> None:
    seen: list[int] = []
    add_global_callback(RecordFunctionCallback(lambda fn: seen.append(fn.num_inputs())))
    helpers.record_function_with_inputs("add", [1]).end()
    assert seen == [0]
