"""``RecordFunction``, what it says of itself, and the helpers in place of the macros (source:
``at::RecordFunction``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.recording_helpers import Capture
from helpers.runtime_helpers import FUNCTION, USER, Notes, in_thread, observe, pairs, run_range
from otel_recfn.callbacks import operations as helpers
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.input_texts import input_texts
from otel_recfn.callbacks.record_function import FIRST_HANDLE, OperatorName, RecordFunction
from otel_recfn.callbacks.registry import add_global_callback, clear_callbacks
from otel_recfn.errors import InputsError
from otel_recfn.model.events import OVERLAPPING, EventFlag, Extra, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES

pytestmark = pytest.mark.usefixtures("runtime")


def test_end_runs_the_end_callbacks_once() -> None:
    notes = Notes()
    add_global_callback(notes.callback())
    range_ = RecordFunction()
    range_.before("add")
    range_.end()
    range_.end()
    assert notes == pairs("add")


def test_end_without_before_calls_nobody() -> None:
    notes = Notes()
    add_global_callback(notes.callback())
    RecordFunction().end()
    assert notes == []


def test_a_range_that_nobody_holds_any_more_ends() -> None:
    notes = Notes()
    add_global_callback(notes.callback())
    range_ = RecordFunction()
    range_.before("add")
    del range_
    assert notes == pairs("add")


def test_it_is_active_while_somebody_observes(runtime: Recorder) -> None:
    assert not RecordFunction().is_active()
    add_global_callback(RecordFunctionCallback(print).scopes({USER}))
    assert RecordFunction(USER).is_active()
    assert not RecordFunction(FUNCTION).is_active()
    clear_callbacks()
    Capture(runtime)
    assert RecordFunction().is_active()


def test_it_is_active_until_its_end_callbacks_have_run() -> None:
    seen: list[tuple[str, bool]] = []

    def start(fn: RecordFunction) -> None:
        seen.append(("start", fn.is_active()))

    def end(fn: RecordFunction, _: object) -> None:
        fn.before("again")  # it has ended: nothing begins
        seen.append(("end", fn.is_active()))

    add_global_callback(RecordFunctionCallback(start, end))
    with RecordFunction() as range_:
        range_.before("add")
    assert seen == [("start", True), ("end", True)]
    assert not range_.is_active()


def test_it_is_recorded_with_what_it_knows(capture: Capture) -> None:
    with RecordFunction(RecordScope.BACKWARD_FUNCTION) as range_:
        range_.set_forward_thread_id(3)
        range_.set_debug_handle(99)
        handle = range_.handle()
        range_.before("AddBackward0", sequence_nr=17)
        range_._set_async()  # noqa: SLF001 - as for a range that ends with a future
    capture.finish()
    (row,) = capture.rows()
    assert (row.name, row.scope, row.sequence_nr) == (
        "AddBackward0",
        RecordScope.BACKWARD_FUNCTION,
        17,
    )
    assert (row.forward_thread_id, row.debug_handle, row.flags) == (3, 99, EventFlag.ASYNC)
    assert row.handle == handle
    assert int(float(handle)) == handle > 0


def test_begun_twice_it_has_the_second_name_and_its_starts_run_again(
    capture: Capture, notes: Notes
) -> None:
    """As in PyTorch; the recorder's row keeps the first name."""
    add_global_callback(notes.callback())
    with RecordFunction() as range_:
        range_.before("first")
        range_.before("second")
    assert notes == [("start", "first"), ("start", "second"), ("end", "second")]
    capture.finish()
    assert [row.name for row in capture.rows()] == ["first"]


def test_what_has_ended_begins_no_more(capture: Capture, notes: Notes) -> None:
    range_ = RecordFunction()
    range_.before("once")
    range_.end()
    assert not range_.is_active()
    add_global_callback(notes.callback())
    range_.before("again")
    range_.end()
    assert notes == []
    capture.finish()
    assert [row.name for row in capture.rows()] == ["once"]


def test_an_error_that_leaves_the_with_marks_the_row(capture: Capture) -> None:
    def fail() -> None:
        with RecordFunction() as range_:
            range_.before("add")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    capture.finish()
    assert [row.error for row in capture.rows()] == ["ValueError: x"]


class Tensor:
    """Has a shape and a dtype."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, "torch.float32"


def test_shapes_are_recorded_when_they_are_asked_for(runtime: Recorder) -> None:
    capture = Capture(runtime)
    inputs = [Tensor(2, 3), 1.5, [Tensor(4), Tensor()], "text"]
    with RecordFunction() as without:
        assert not without.needs_inputs()
        without.before("without", inputs)
    runtime.start(0x3FF, DEFAULT_BUFFER_BYTES, int(Extra.SHAPES))
    with RecordFunction() as range_:
        assert range_.needs_inputs()
        range_.before("with", inputs)
    capture.finish()
    assert [(row.shapes, row.dtypes) for row in capture.rows()] == [
        ("", ""),
        ("[[2,3],[],[[4],[]],[]]", '["float32","Scalar",["float32","float32"],""]'),
    ]


def test_inputs_that_refuse_to_be_asked_have_no_shapes() -> None:
    class Lazy:
        dtype = "float32"

        @property
        def shape(self) -> Any:
            raise RuntimeError("not yet")

    assert input_texts([Lazy()]) == ("", "")


WRONG_ARGUMENTS: list[tuple[Callable[[RecordFunction], object], str]] = [
    (lambda range_: range_.before(None), "pass a str"),
    (lambda range_: range_.before("op", (value for value in "ab")), "pass a tuple or a list"),  # type: ignore[arg-type]
    (
        lambda range_: range_.before("op", sequence_nr=1 << 63),
        "sequence_nr=.* a whole number from -9223372036854775808 to",
    ),
    (lambda range_: range_.before("op", sequence_nr="1"), "sequence_nr='1' is not allowed"),  # type: ignore[arg-type]
    (
        lambda range_: range_.set_forward_thread_id(-1),
        "forward_thread_id=-1 .* from 0 to 4294967295",
    ),
    (
        lambda range_: range_.set_forward_thread_id(1 << 32),
        "forward_thread_id=4294967296 is not allowed",
    ),
    (lambda range_: range_.set_handle(-1), "handle=-1 is not allowed"),
    (lambda range_: range_.set_debug_handle(1.5), "debug_handle=1.5 is not allowed"),  # type: ignore[arg-type]
    (
        lambda range_: range_.set_default_node_id(1 << 63),
        "node_id=9223372036854775808 is not allowed",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG_ARGUMENTS)
@pytest.mark.parametrize("observed", [True, False])
def test_wrong_arguments_are_refused_whether_observed_or_not_and_spoil_nothing(
    capture: Capture, call: Callable[[RecordFunction], object], message: str, observed: bool
) -> None:
    if not observed:
        capture.recorder.stop()
    with pytest.raises((TypeError, ValueError), match=message):
        call(RecordFunction())
    run_range("op")
    capture.finish()
    assert [row.name for row in capture.rows()] == ["op"] * observed


def test_the_largest_arguments_are_recorded(capture: Capture) -> None:
    range_ = RecordFunction()
    range_.set_forward_thread_id((1 << 32) - 1)
    range_.set_handle((1 << 64) - 1)
    range_.set_debug_handle(-(1 << 63))
    range_.before("op", sequence_nr=(1 << 63) - 1)
    range_.end()
    capture.finish()
    (row,) = capture.rows()
    assert (row.forward_thread_id, row.handle) == ((1 << 32) - 1, (1 << 64) - 1)
    assert (row.debug_handle, row.sequence_nr) == (-(1 << 63), (1 << 63) - 1)


SCHEMA = SimpleNamespace(
    name="aten::add", overload_name="Tensor", arguments=["self", "other", "alpha"], returns=["out"]
)


def test_inputs_are_readable_in_the_start_callback_only() -> None:
    def end(fn: RecordFunction, _context: Any) -> None:
        with pytest.raises(InputsError):
            fn.inputs()
        ended.append(fn)

    ended: list[RecordFunction] = []
    add_global_callback(RecordFunctionCallback(None, end).needs_inputs(True))
    seen = observe(lambda fn: (fn, fn.inputs(), fn.kwinputs(), fn.num_inputs()))
    with RecordFunction() as range_:
        range_.before("add", [1, 2], {"alpha": 3})
        assert seen == [(range_, [1, 2], {"alpha": 3}, 2)]
        for read in (range_.inputs, range_.kwinputs):
            with pytest.raises(InputsError, match="outside the start callback"):
                read()
        assert range_.num_inputs() == 2
    assert ended == [range_]


def test_outputs_are_readable_in_the_end_callback() -> None:
    seen: list[Any] = []
    add_global_callback(
        RecordFunctionCallback(
            None, lambda fn, context: seen.append((fn.outputs(), fn.num_outputs()))
        ).needs_outputs(True)
    )
    with RecordFunction() as range_:
        range_.before("add", [1, 2])
        assert range_.needs_outputs()
        range_.set_outputs(outputs := [3])
        outputs.append(4)
    assert seen == [([3], 1)], "those at the moment they were set"


def test_sequence_number_debug_handle_and_forward_thread_are_readable() -> None:
    seen = observe(lambda fn: (fn.seq_nr(), fn.debug_handle(), fn.forward_thread_id(), fn.scope()))
    with RecordFunction(RecordScope.BACKWARD_FUNCTION) as range_:
        range_.set_forward_thread_id(3)
        range_.set_debug_handle(99)
        range_.before("AddBackward0", sequence_nr=17)
    with RecordFunction() as plain:
        plain.before("add")
    assert seen == [(17, 99, 3, RecordScope.BACKWARD_FUNCTION), (-1, -1, 0, FUNCTION)]


def test_a_schema_gives_name_operator_name_and_counts_and_a_name_the_name_alone() -> None:
    seen = observe(
        lambda fn: (
            fn.name(),
            fn.operator_name(),
            fn.operator_schema(),
            fn.num_inputs(),
            fn.num_outputs(),
        )
    )
    for given in (SCHEMA, "add"):
        with RecordFunction() as range_:
            range_.before(given, [1])
    assert seen == [
        ("aten::add", OperatorName("aten::add", "Tensor"), SCHEMA, 3, 1),
        ("add", None, None, 1, 0),
    ]


def test_after_the_end_accessors_say_nothing_useful_and_hold_nothing() -> None:
    class Tensor:
        pass

    observe(lambda fn: None)
    range_ = RecordFunction()
    output = Tensor()
    range_.before("add", [1], sequence_nr=5)
    range_.set_outputs([output])
    range_.end()
    assert (range_.name(), range_.seq_nr(), range_.handle(), range_.num_inputs()) == ("", -1, 0, 0)
    assert (range_.outputs(), range_.operator_name(), range_.is_active()) == ((), None, False)
    alive = weakref.ref(output)
    del output
    assert alive() is None


def test_handles_are_unique_where_ids_are_needed() -> None:
    seen = observe(lambda fn: fn.handle())
    known = []
    for _ in range(100):
        with RecordFunction() as range_:
            known.append(range_.handle())
            range_.before("add")
    assert seen == known
    assert len(set(seen)) == 100
    assert all(FIRST_HANDLE <= handle < 2 * FIRST_HANDLE for handle in seen)


def test_without_need_of_ids_there_is_no_handle() -> None:
    seen: list[int] = []
    add_global_callback(RecordFunctionCallback(lambda fn: seen.append(fn.handle())))
    with RecordFunction() as range_:
        range_.before("add")
    assert seen == [0]


def test_a_handle_that_was_set_stays() -> None:
    seen = observe(lambda fn: fn.handle())
    with RecordFunction() as range_:
        range_.set_handle(12)
        range_.before("add")
    assert seen == [12]


def test_the_thread_id_is_that_of_the_thread_that_began_it() -> None:
    seen = observe(lambda fn: fn.thread_id())
    range_ = RecordFunction()
    range_.before("add")
    ids: list[int] = []
    add_global_callback(
        RecordFunctionCallback(None, lambda fn, context: ids.append(fn.thread_id()))
    )
    in_thread(range_.end)
    assert seen == [RecordFunction.current_thread_id()]


def test_asynchronous_and_out_variant_and_collective_are_readable() -> None:
    seen = observe(
        lambda fn: (fn.is_async(), fn.is_static_runtime_out_variant(), fn.is_nccl_meta())
    )
    with RecordFunction() as range_:
        # PyTorch sets these in C++.
        range_._set_async()  # noqa: SLF001
        range_._set_static_runtime_out_variant()  # noqa: SLF001
        range_.before("add")
    with RecordFunction() as collective:
        collective.before("record_param_comms")
    assert seen == [(True, True, False), (False, False, True)]


def test_a_range_that_another_thread_ends_is_asynchronous_in_its_end_callback(
    capture: Capture,
) -> None:
    seen: list[bool] = []
    add_global_callback(
        RecordFunctionCallback(None, lambda fn, context: seen.append(fn.is_async()))
    )
    here = RecordFunction()
    elsewhere = RecordFunction()
    here.before("here")
    here.end()
    elsewhere.before("elsewhere")
    assert not elsewhere.is_async()
    in_thread(elsewhere.end)
    assert seen == [False, True]
    assert {row.name: bool(row.flags & OVERLAPPING) for row in capture.finish()} == {
        "here": False,
        "elsewhere": True,
    }


@pytest.mark.parametrize(
    ("begin", "scope"),
    [
        (lambda: helpers.record_function_with_inputs("add", [1]), FUNCTION),
        (
            lambda: helpers.record_function_with_scope(RecordScope.CUSTOM_CLASS, "add", [1]),
            RecordScope.CUSTOM_CLASS,
        ),
        (lambda: helpers.record_torchscript_function("add", [1]), RecordScope.TORCHSCRIPT_FUNCTION),
        (lambda: helpers.record_user_scope("add", [1]), USER),
        (
            lambda: helpers.record_edge_scope_with_debug_handle_and_inputs("add", -1, [1]),
            RecordScope.LITE_INTERPRETER,
        ),
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
    add_global_callback(
        RecordFunctionCallback(
            None, lambda fn, context: seen.append(list(fn.outputs()))
        ).needs_outputs(needed)
    )
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
