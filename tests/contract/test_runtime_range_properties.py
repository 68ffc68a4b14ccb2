"""What a range says of itself to callbacks, and when."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_helpers import FUNCTION, in_thread, observe

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.record_function import FIRST_HANDLE, OperatorName, RecordFunction
from otel_recfn.callbacks.registry import add_global_callback
from otel_recfn.model.errors import InputsError
from otel_recfn.model.events import RecordScope

pytestmark = pytest.mark.usefixtures("runtime")

SCHEMA = SimpleNamespace(name="aten::add", overload_name="Tensor", arguments=["self", "other", "alpha"], returns=["out"])


def test_inputs_are_readable_in_the_start_callback_only() -> None:
    seen = observe(lambda fn: (fn, fn.inputs(), fn.kwinputs(), fn.num_inputs()))
    with RecordFunction() as range_:
        range_.before("add", [1, 2], {"alpha": 3})
        assert seen == [(range_, [1, 2], {"alpha": 3}, 2)]
        for read in (range_.inputs, range_.kwinputs):
            with pytest.raises(InputsError, match="outside the start callback"):
                read()
        assert range_.num_inputs() == 2


def test_inputs_are_not_readable_in_the_end_callback() -> None:
    raised: list[BaseException] = []

    def end(fn: RecordFunction, context: Any) -> None:
        try:
            fn.inputs()
        except InputsError as error:
            raised.append(error)

    add_global_callback(RecordFunctionCallback(None, end).needs_inputs(True))
    with RecordFunction() as range_:
        range_.before("add", [1])
    assert len(raised) == 1


def test_outputs_are_readable_in_the_end_callback() -> None:
    seen: list[Any] = []
    add_global_callback(
        RecordFunctionCallback(None, lambda fn, context: seen.append((fn.outputs(), fn.num_outputs()))).needs_outputs(True)
    )
    with RecordFunction() as range_:
        range_.before("add", [1, 2])
        assert range_.needs_outputs()
        range_.set_outputs([3])
    assert seen == [([3], 1)]


def test_sequence_number_debug_handle_and_forward_thread_are_readable() -> None:
    seen = observe(lambda fn: (fn.seq_nr(), fn.debug_handle(), fn.forward_thread_id(), fn.scope()))
    with RecordFunction(RecordScope.BACKWARD_FUNCTION) as range_:
        range_.set_forward_thread_id(3)
        range_.set_debug_handle(99)
        range_.before("AddBackward0", sequence_nr=17)
    with RecordFunction() as plain:
        plain.before("add")
    assert seen == [(17, 99, 3, RecordScope.BACKWARD_FUNCTION), (-1, -1, 0, FUNCTION)]


def test_a_schema_gives_name_operator_name_and_counts() -> None:
    seen = observe(lambda fn: (fn.name(), fn.operator_name(), fn.operator_schema(), fn.num_inputs(), fn.num_outputs()))
    with RecordFunction() as range_:
        range_.before(SCHEMA, [1])
    assert seen == [("aten::add", OperatorName("aten::add", "Tensor"), SCHEMA, 3, 1)]


def test_a_name_has_no_operator_name_and_no_schema() -> None:
    seen = observe(lambda fn: (fn.operator_name(), fn.operator_schema()))
    with RecordFunction() as range_:
        range_.before("add")
    assert seen == [(None, None)]


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


# --- ids, threads, nodes, kinds


def test_handles_are_unique_where_ids_are_needed() -> None:
    seen, known = observe(lambda fn: fn.handle()), []
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


def test_outputs_are_those_at_the_moment_they_were_set() -> None:
    seen: list[Any] = []
    end = RecordFunctionCallback(None, lambda fn, context: seen.append(list(fn.outputs())))
    add_global_callback(end.needs_outputs(True))
    outputs = [1]
    with RecordFunction() as range_:
        range_.before("add")
        range_.set_outputs(outputs)
        outputs.append(2)
    assert seen == [[1]]


def test_the_thread_id_is_that_of_the_thread_that_began_it() -> None:
    seen = observe(lambda fn: fn.thread_id())
    range_ = RecordFunction()
    range_.before("add")
    ids: list[int] = []
    add_global_callback(RecordFunctionCallback(None, lambda fn, context: ids.append(fn.thread_id())))
    in_thread(range_.end)
    assert seen == [RecordFunction.current_thread_id()]


def test_thread_ids_are_never_given_to_another_thread() -> None:
    ids = [in_thread(RecordFunction.current_thread_id) for _ in range(20)]
    assert len({*ids, RecordFunction.current_thread_id()}) == 21


def test_the_default_node_id() -> None:
    assert RecordFunction.get_default_node_id() == -1
    RecordFunction.set_default_node_id(4)
    assert RecordFunction.get_default_node_id() == 4
    RecordFunction.set_default_node_id(-1)


def test_asynchronous_and_out_variant_and_collective_are_readable() -> None:
    seen = observe(lambda fn: (fn.is_async(), fn.is_static_runtime_out_variant(), fn.is_nccl_meta()))
    with RecordFunction() as range_:
        range_._set_async()
        range_._set_static_runtime_out_variant()
        range_.before("add")
    with RecordFunction() as collective:
        collective.before("record_param_comms")
    assert seen == [(True, True, False), (False, False, True)]
