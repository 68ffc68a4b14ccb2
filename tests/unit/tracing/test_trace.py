"""Graphs of what programs call through wrappers, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy_wrappers as ops
import pytest

from otel_recfn.callbacks import thread_locals
from otel_recfn.errors import OperatorMissingError
from otel_recfn.observing import (
    RecordFunctionCallback,
    add_global_callback,
    propagate,
    remove_callback,
)
from otel_recfn.recording.watched import Watched
from otel_recfn.tracing import Graph, TraceError, trace
from otel_recfn.tracing.graph import TracerWarning
from otel_recfn.tracing.wrappers import Library, Recorded

A = np.arange(4.0)
B = np.ones(4)


@pytest.fixture(autouse=True)
def nothing_goes_on(nobody_watches: None) -> Iterator[None]:
    yield
    assert not Watched.now
    assert thread_locals.current().tracer is None


def kinds(graph: Graph) -> list[str]:
    return [node.kind.removeprefix("arrays::") for node in graph.operators()]


def test_nodes_with_inputs_outputs_and_their_lines() -> None:
    def model(x: Any, y: Any) -> Any:
        low, _high = ops.minmax(ops.add(x, y))
        return low

    graph = trace(model, A, B)
    line = inspect.getsourcelines(model)[1] + 1
    assert str(graph).replace(__file__, "FILE") == (
        "graph(%0 : float64(4), %1 : float64(4)):\n"
        f"  %2 : int = prim::Constant[value=1]()  # FILE:{line}\n"
        f"  %3 : float64(4) = arrays::add(%0, %1, %2)  # FILE:{line}\n"
        f"  %4 : float64(), %5 : float64() = arrays::minmax(%3)  # FILE:{line}\n"
        "  return (%4)"
    )
    node = next(graph.operators())
    assert list(node.names) == ["self", "other", "alpha"]
    assert node.source is not None
    assert node.source.function == "model"


def test_lists_are_made_and_unpacked() -> None:
    graph = trace(lambda x: ops.stack(ops.split(x, 2)), A)
    assert graph.kinds() == [
        "prim::Constant",
        "arrays::split",
        "prim::ListUnpack",
        "prim::ListConstruct",
        "arrays::stack",
    ]
    unpack = graph.nodes[2]
    made = graph.nodes[3]
    assert list(unpack.outputs) == list(made.inputs)


def test_results_of_several_kinds() -> None:
    graph = trace(lambda x: {"sum": ops.add(x, x), "parts": (x, 2)}, A)
    assert graph.kinds()[2:] == [
        "prim::Constant",
        "prim::Constant",
        "prim::Constant",
        "prim::TupleConstruct",
        "prim::DictConstruct",
    ]
    assert len(graph.outputs) == 1


def test_what_is_written_to_is_the_nodes_result_from_then_on() -> None:
    def model(x: Any) -> Any:
        ops.add_(x, B)
        return ops.add(x, x)

    first, second = trace(model, A.copy()).operators()
    assert list(second.inputs)[:2] == [first.outputs[0]] * 2
    assert first.kind == "arrays::add_"


def test_force_outplace_renames_and_changes_inputs() -> None:
    def model(x: Any) -> Any:
        ops.add_(x, B)
        ops.fill_(x, 2.0)
        return ops.ones_out(4, out=x)

    graph = trace(model, A.copy(), force_outplace=True)
    assert kinds(graph) == ["add", "full_like", "ones"]
    *_, full_like, ones = graph.operators()
    assert list(full_like.names) == ["self", "value", "options"]
    assert list(ones.names) == ["n", "out"]
    assert kinds(trace(model, A.copy())) == ["add_", "fill_", "ones"]


def test_one_number_stands_for_a_list() -> None:
    graph = trace(lambda x: ops.ones_out(4, out=x), A.copy())
    assert graph.kinds() == ["prim::Constant", "prim::ListConstruct", "arrays::ones"]


def test_sharing_data_with_what_is_written_is_told() -> None:
    def model(x: Any, view: Any) -> Any:
        return ops.add_(x, B)

    base = A.copy()
    with pytest.warns(
        TracerWarning, match="1 other tensors share the data that arrays::add_ writes"
    ):
        trace(model, base, base[:2], force_outplace=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(model, base, A, force_outplace=True)
        trace(model, base, base[:2])


def test_the_real_operator_is_not_traced_inside() -> None:
    assert kinds(trace(ops.twice, A)) == ["twice"]


def test_an_operator_that_is_not_recorded_shows_those_of_which_it_consists() -> None:
    assert kinds(trace(ops.composite, A)) == ["add", "add"]


def test_an_error_goes_on_and_tracing_goes_on_after_it() -> None:
    def model(x: Any) -> Any:
        with pytest.raises(ValueError, match="no such array"):
            ops.fail(x)
        return ops.add(x, x)

    graph = trace(model, A)
    assert kinds(graph) == ["fail", "add"]
    assert list(next(graph.operators()).outputs) == []


def test_an_error_of_the_function_ends_the_trace() -> None:
    with pytest.raises(ValueError, match="no such array"):
        trace(ops.fail, A)


def test_nested_traces_are_apart() -> None:
    graphs: list[Graph] = []

    def inner(x: Any) -> Any:
        return ops.add(x, x)

    def outer(x: Any) -> Any:
        y = ops.minmax(x)[0]
        graphs.append(trace(inner, x))
        return ops.add(y, y)

    assert kinds(trace(outer, A)) == ["minmax", "add"]
    assert kinds(graphs[0]) == ["add"]


def test_threads_trace_apart() -> None:
    barrier = threading.Barrier(4)

    def model(x: Any, times: int) -> Any:
        barrier.wait()
        for _ in range(times):
            x = ops.add(x, x)
        return x

    with ThreadPoolExecutor(4) as pool:
        graphs = [pool.submit(trace, model, A, times) for times in (10, 20, 30, 40)]
    assert [len(kinds(each.result())) for each in graphs] == [10, 20, 30, 40]


def test_a_thread_that_nobody_told_is_not_traced() -> None:
    def model(x: Any) -> Any:
        thread = threading.Thread(target=ops.add, args=(x, x))
        thread.start()
        thread.join()
        return x

    assert kinds(trace(model, A)) == []


def test_work_that_takes_the_state_along_is_traced() -> None:
    def model(x: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(propagate(ops.add), [x] * 50, [x] * 50))

    graph = trace(model, A)
    assert kinds(graph) == ["add"] * 50
    assert len({output for node in graph.operators() for output in node.outputs}) == 50
    assert len(graph.nodes[-1].inputs) == 50
    assert set(graph.nodes[-1].inputs) == {node.outputs[0] for node in graph.operators()}


def test_a_task_that_takes_the_state_along_is_traced() -> None:
    async def work(x: Any) -> Any:
        await asyncio.sleep(0)
        return ops.add(x, x)

    assert kinds(trace(lambda x: asyncio.run(work(x)), A)) == ["add"]


def test_generators_and_coroutines_have_not_run() -> None:
    def generator(x: Any) -> Iterator[Any]:
        yield ops.add(x, x)

    async def coroutine(x: Any) -> Any:
        return ops.add(x, x)

    with pytest.raises(TraceError, match="generator"):
        trace(generator, A)
    made = coroutine(A)
    with pytest.raises(TraceError, match="coroutine"):
        trace(lambda _x: made, A)
    made.close()
    assert kinds(trace(lambda x: list(generator(x)), A)) == ["add"]


def test_graphs_are_compared_by_what_they_do() -> None:
    def with_add(x: Any) -> Any:
        return ops.add(x, x, alpha=2)

    def same(x: Any) -> Any:
        y = ops.add(x, x, alpha=2)
        return y  # noqa: RET504 - on another line

    assert trace(with_add, A) == trace(same, A)
    assert trace(with_add, A) != trace(lambda x: ops.add(x, x, alpha=3), A)
    assert trace(with_add, A) != trace(with_add, A[:2])
    assert trace(with_add, A) != trace(lambda x: ops.add(x, B, alpha=2), A)
    assert trace(with_add, A) != "graph"


def test_an_operator_that_is_not_there() -> None:
    with pytest.raises(OperatorMissingError, match="arrays::missing"):
        ops.missing(A)
    with pytest.raises(OperatorMissingError, match="arrays::missing"):
        trace(ops.missing, A)


def test_calls_of_callbacks_are_not_the_programs() -> None:
    handle = add_global_callback(RecordFunctionCallback(lambda fn: ops.add(A, A) and None))
    try:
        graph = trace(lambda x: ops.minmax(x)[0], A)
    finally:
        remove_callback(handle)
    assert kinds(graph) == ["minmax"]


def called(target: Any, *returns: str) -> Any:
    """A wrapper of this function."""
    operator = Library("lib", {"f": target}).operator(
        "f", "", {"self": "Tensor"}, returns, Recorded("f")
    )
    return lambda *args: operator.observed(args, {})


def test_results_are_those_of_the_schema() -> None:
    several = called(lambda x: [x.min(), x.max()], "Tensor", "Tensor")
    (node,) = trace(several, A).operators()
    assert [each.type for each in node.outputs] == ["float64()", "float64()"]
    one_list = called(lambda x: (x, x), "Tensor[]")
    assert trace(lambda x: ops.stack(one_list(x)), A).kinds()[:2] == ["lib::f", "prim::ListUnpack"]


class InClass:
    neg = staticmethod(np.negative)
    neg_other = staticmethod(np.positive)
    lambda_ = staticmethod(np.negative)


REGISTRY = {"neg": np.negative, "lib::neg.other": np.positive, "lambda": np.negative}


@pytest.mark.parametrize(
    "where", [REGISTRY, InClass, f"{__name__}:REGISTRY", f"{__name__}:InClass"]
)
def test_where_operators_are_found(where: Any) -> None:
    library = Library("lib", where)
    targets = [
        library.operator("neg", overload, {"self": "Tensor"}, ("Tensor",)).target
        for overload in ("", "other")
    ]
    assert targets == [np.negative, np.positive]
    assert library.operator("lambda", "", {"self": "Tensor"}, ("Tensor",)).target is np.negative


def test_a_module_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(ModuleNotFoundError):
        Library("lib", "no_such_module:THINGS").operator("neg", "", {}, ())
