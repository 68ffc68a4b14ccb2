"""Each call of a wrapper is a range of scope FUNCTION, for the recorder and for callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy_wrappers as ops
import pytest

from otel_recfn import RecordScope, profile, record_function
from otel_recfn.observing import (
    DisableRecordFunctionGuard,
    RecordFunction,
    RecordFunctionCallback,
    add_global_callback,
    add_thread_local_callback,
    disable_callback,
    reenable_callback,
    remove_callback,
)
from otel_recfn.recording.watched import Watched
from otel_recfn.tracing import trace
from otel_recfn.tracing.wrappers import Library, Recorded

A = np.arange(4.0)
pytestmark = pytest.mark.usefixtures("nobody_watches")


@contextmanager
def observed(
    callback: RecordFunctionCallback, add: Callable[[RecordFunctionCallback], int]
) -> Iterator[int]:
    handle = add(callback)
    try:
        yield handle
    finally:
        remove_callback(handle)


def test_ranges_nest_and_carry_shapes() -> None:
    with profile(record_shapes=True) as prof, record_function("outer"):
        ops.twice(A)
    assert not Watched.now
    outer, twice, *adds = prof.events()
    assert [(each.name, each.scope) for each in (outer, twice)] == [
        ("outer", RecordScope.USER_SCOPE),
        ("arrays::twice", RecordScope.FUNCTION),
    ]
    assert twice.parent == outer.event_id
    assert [(each.name, each.parent) for each in adds] == [("arrays::add", twice.event_id)] * 2
    assert twice.shapes == "[[4]]"


class Refusing:
    """An input whose shape can't be read."""

    dtype = "none"

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("no shape")


@pytest.mark.parametrize("args", [(), (A,), (A, Refusing()), ([A, A], 2.0, None)])
@pytest.mark.parametrize(
    "error", [None, ValueError("no such array"), KeyboardInterrupt(), StopIteration()]
)
def test_a_range_is_recorded_alike_with_and_without_a_callback(
    args: tuple[Any, ...], error: BaseException | None
) -> None:
    arguments = dict.fromkeys(("a", "b", "c")[: len(args)], "Tensor")
    library = Library("arrays", {"any": Mock(side_effect=error)})
    operator = library.operator("any", "", arguments, ("Tensor",), Recorded("any"))
    with profile(record_shapes=True) as prof:
        for add in (lambda _: 0, add_global_callback):
            with observed(RecordFunctionCallback(lambda fn: None), add), suppress(BaseException):
                operator.observed(args, {})
    alone, seen = [
        (each.name, each.scope, each.shapes, each.dtypes, each.flags, each.error)
        for each in prof.events()
    ]
    assert alone == seen


def test_scopes_that_are_not_selected_are_not_recorded() -> None:
    with profile(scopes={RecordScope.USER_SCOPE}) as prof:
        ops.add(A, A)
    assert [each.name for each in prof.events()] == []


@pytest.mark.parametrize("add", [add_global_callback, add_thread_local_callback])
def test_a_callback_sees_inputs_outputs_and_the_schema(
    add: Callable[[RecordFunctionCallback], int],
) -> None:
    seen: list[Any] = []

    def start(fn: RecordFunction) -> None:
        seen.append(
            (
                fn.name(),
                fn.scope(),
                fn.operator_name(),
                list(fn.inputs()),
                fn.num_inputs(),
                fn.num_outputs(),
            )
        )
        seen.append(list(fn.kwinputs()))
        seen.append([(each.name, each.type) for each in fn.operator_schema().arguments])

    def end(fn: RecordFunction, _context: Any) -> None:
        seen.append(list(fn.outputs()))

    with observed(RecordFunctionCallback(start, end).needs_inputs(True).needs_outputs(True), add):
        low, high = ops.minmax(A)
        total = ops.add(A, A, alpha=2)
    assert seen[0] == ("arrays::minmax", RecordScope.FUNCTION, ("arrays::minmax", ""), [A], 1, 2)
    assert seen[3] == [low, high]
    assert seen[4][3][0] is A
    assert seen[4][3][2] == 2
    assert seen[5] == ["self", "other", "alpha"]
    assert seen[6] == [("self", "Tensor"), ("other", "Tensor"), ("alpha", "Scalar")]
    assert seen[7][0] is total
    assert not Watched.now


def test_inputs_are_collected_for_nobody_who_needs_none() -> None:
    seen: list[int] = []
    with observed(
        RecordFunctionCallback(lambda fn: seen.append(len(fn.inputs()))), add_global_callback
    ):
        ops.add(A, A)
    assert seen == [0]


def test_a_callback_that_is_disabled_or_of_another_scope_sees_nothing() -> None:
    names: list[str] = []
    with observed(
        RecordFunctionCallback(lambda fn: names.append(fn.name())), add_global_callback
    ) as handle:
        with DisableRecordFunctionGuard():
            ops.add(A, A)
        disable_callback(handle)
        assert not Watched.now
        ops.add(A, A)
        reenable_callback(handle)
        ops.minmax(A)
    other = RecordFunctionCallback(lambda fn: names.append(fn.name())).scopes(
        {RecordScope.USER_SCOPE}
    )
    with observed(other, add_global_callback):
        ops.add(A, A)
    assert names == ["arrays::minmax"]


def test_a_callback_that_raises_changes_nothing() -> None:
    with observed(RecordFunctionCallback(lambda fn: 1 / 0), add_global_callback):
        assert (ops.add(A, A) == A + A).all()


def test_an_error_of_the_operator_is_the_ranges_error() -> None:
    with profile() as prof, pytest.raises(ValueError, match="no such array"):
        ops.fail(A)
    (event,) = prof.events()
    assert (event.name, event.error) == ("arrays::fail", "ValueError: no such array")


def test_ranges_and_graph_at_once() -> None:
    with profile() as prof:
        graph = trace(ops.twice, A)
    assert [each.name for each in prof.events()] == ["arrays::twice", "arrays::add", "arrays::add"]
    assert [each.kind for each in graph.operators()] == ["arrays::twice"]
