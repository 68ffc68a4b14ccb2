"""``RecordFunction`` and the helpers in place of the macros (source: ``at::RecordFunction``, ``RECORD_FUNCTION``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from recording_helpers import Capture
from runtime_helpers import FUNCTION, USER, Notes, pairs, run_range

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.input_texts import input_texts
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import add_global_callback, clear_callbacks
from otel_recfn.model.events import EventFlag, Extra, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES

pytestmark = pytest.mark.usefixtures("runtime")

# --- begin and end


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


def test_leaving_the_with_ends_it() -> None:
    notes = Notes()
    add_global_callback(notes.callback())
    with RecordFunction() as range_:
        range_.before("add")
    assert notes == pairs("add")


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


def test_what_is_not_active_begins_nothing() -> None:
    range_ = RecordFunction()
    range_.before("add")
    add_global_callback(RecordFunctionCallback(None, lambda fn, context: pytest.fail("no start, no end")))
    range_.end()


# --- the recorder


def test_it_is_recorded_with_what_it_knows(capture: Capture) -> None:
    with RecordFunction(RecordScope.BACKWARD_FUNCTION) as range_:
        range_.set_forward_thread_id(3)
        range_.set_debug_handle(99)
        handle = range_.handle()
        range_.before("AddBackward0", sequence_nr=17)
        range_._set_async()
    capture.finish()
    (row,) = capture.rows()
    assert (row.name, row.scope, row.sequence_nr) == ("AddBackward0", RecordScope.BACKWARD_FUNCTION, 17)
    assert (row.forward_thread_id, row.debug_handle, row.flags) == (3, 99, EventFlag.ASYNC)
    assert row.handle == handle
    assert int(float(handle)) == handle > 0


def test_begun_twice_it_has_the_second_name_and_its_starts_run_again(capture: Capture, notes: Notes) -> None:
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
    assert [(row.shapes, row.dtypes, row.concrete_inputs) for row in capture.rows()] == [
        ("", "", ""),
        ("[[2,3],[],[[4],[]],[]]", '["float32","Scalar",["float32","float32"],""]', '["","1.5","",""]'),
    ]


def test_inputs_that_refuse_to_be_asked_have_no_shapes() -> None:
    class Lazy:
        dtype = "float32"

        @property
        def shape(self) -> Any:
            raise RuntimeError("not yet")

    assert input_texts([Lazy()]) == ("", "", "")


# --- arguments


WRONG_ARGUMENTS: list[tuple[Callable[[RecordFunction], object], str]] = [
    (lambda range_: range_.before(None), "pass a str"),
    (lambda range_: range_.before("op", (value for value in "ab")), "pass a tuple or a list"),  # type: ignore[arg-type]
    (
        lambda range_: range_.before("op", sequence_nr=1 << 63),
        "sequence_nr=.* a whole number from -9223372036854775808 to",
    ),
    (lambda range_: range_.before("op", sequence_nr="1"), "sequence_nr='1' is not allowed"),  # type: ignore[arg-type]
    (lambda range_: range_.set_forward_thread_id(-1), "forward_thread_id=-1 .* from 0 to 4294967295"),
    (lambda range_: range_.set_forward_thread_id(1 << 32), "forward_thread_id=4294967296 is not allowed"),
    (lambda range_: range_.set_handle(-1), "handle=-1 is not allowed"),
    (lambda range_: range_.set_debug_handle(1.5), "debug_handle=1.5 is not allowed"),  # type: ignore[arg-type]
    (lambda range_: range_.set_default_node_id(1 << 63), "node_id=9223372036854775808 is not allowed"),
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
