"""Generated wrappers of PyTorch's operators: the same results as direct calls, and the graphs
that PyTorch's tracer makes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import profile
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, remove_callback
from otel_recfn.recording.watched import Watched
from otel_recfn.tracing import trace
from otel_recfn.tracing.graph import TracerWarning

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.one_python]

Words = torch.dtype, torch.layout, torch.memory_format
"""Types of defaults that schemas write as words."""


@pytest.fixture(scope="module")
def wrappers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with wrappers of all operators of the installed torch."""
    from otel_recfn.codegen.modules import WrapperRequest, generate, write

    folder = tmp_path_factory.mktemp("generated")
    schemas = (
        Path(torch.__file__).parents[1]
        / "torchgen"
        / "packaged"
        / "ATen"
        / "native"
        / "native_functions.yaml"
    )
    made = generate(WrapperRequest(schemas, shards=5))
    write(folder / "aten_wrappers", made.texts)
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("aten_wrappers")
    finally:
        sys.path.remove(str(folder))
    assert len(module.__all__) == made.wrapped > 2500
    return module


def test_all_operators_that_this_torch_has_are_found(wrappers: Any) -> None:
    shards = [module for name, module in sys.modules.items() if name.startswith("aten_wrappers.")]
    operators = [
        value
        for module in shards
        for name, value in vars(module).items()
        if name.startswith("_OP_")
    ]
    assert len(operators) == len(wrappers.__all__)
    assert [
        str(each) for each in operators if not isinstance(each.target, torch._ops.OpOverload)
    ] == []


def test_defaults_are_those_of_the_operators(wrappers: Any) -> None:
    """Those that PyTorch has as numbers, dtypes for instance, are compared with these by calls
    below.
    """
    differing = {}
    for module in [
        module for name, module in sys.modules.items() if name.startswith("aten_wrappers.")
    ]:
        for name, wrapper in vars(module).items():
            if (operator := vars(module).get(f"_OP_{name}")) is None:
                continue
            ours = {
                each.name.rstrip("_"): _plain(each.default)
                for each in inspect.signature(wrapper).parameters.values()
            }
            theirs = {
                each.name.rstrip("_"): _plain(each.default_value)
                if each.has_default_value()
                else inspect.Parameter.empty
                for each in operator.target._schema.arguments
            }
            if any(
                value != theirs[each] and not isinstance(value, Words)
                for each, value in ours.items()
            ):
                differing[name] = ours, theirs
    assert differing == {}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def tensors() -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.rand(4, 4), torch.rand(4, 4) + 0.5


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add.Tensor": lambda f, x, y: (f(x, y), f(x, y, alpha=3)),
    "sub.Scalar": lambda f, x, y: f(x, 2, 1.5),
    "div.Tensor_mode": lambda f, x, y: f(x, y, rounding_mode="floor"),
    "sum": lambda f, x, y: (f(x), f(x, dtype=torch.float64)),
    "sum.dim_IntList": lambda f, x, y: (f(x, [0]), f(x, [0, 1], True), f(x, None)),
    "norm.ScalarOpt_dim": lambda f, x, y: f(x, None, [1], True),
    "max.dim": lambda f, x, y: f(x, 1),
    "std_mean": lambda f, x, y: f(x, False),
    "add_.Tensor": lambda f, x, y: (f(x, y), x),
    "mul_.Scalar": lambda f, x, y: (f(x, 2.5), x),
    "random_.from": lambda f, x, y: (f(x, 3, 9), f(x, 3, None)),
    "add.out": lambda f, x, y: (f(x, y, out=y), y),
    "max.dim_max": lambda f, x, y: f(
        x, 0, max=torch.empty(0), max_values=torch.empty(0, dtype=torch.int64)
    ),
    "_foreach_add_.Scalar": lambda f, x, y: (f([x, y], 2.0), x, y),
    "zeros": lambda f, x, y: (f([2, 3]), f([2], dtype=torch.int32, device="cpu")),
    "arange.start_step": lambda f, x, y: f(1, 10, 3),
    "full_like": lambda f, x, y: f(x, 7, memory_format=torch.contiguous_format),
    "rand": lambda f, x, y: f([3]),
    "cat": lambda f, x, y: f([x, y], 1),
    "split.Tensor": lambda f, x, y: f(x, 2),
    "chunk": lambda f, x, y: f(x, 3),
    "index.Tensor": lambda f, x, y: f(x, [None, torch.tensor([0, 2])]),
    "index_put_": lambda f, x, y: (f(x, [torch.tensor([0])], torch.tensor(5.0)), x),
    "clamp": lambda f, x, y: (f(x, None, 0.4), f(x, 0.6)),
    "linear": lambda f, x, y: (f(x, y), f(x, y, y[0])),
    "conv2d": lambda f, x, y: (
        f(x[None, None], y[None, None]),
        f(x[None, None], y[None, None], x[0, :1], [2, 2]),
    ),
    "quantile": lambda f, x, y: (f(x, y[0].clamp(0, 1)), f(x, y[0].clamp(0, 1), 1, True)),
    "max_pool2d": lambda f, x, y: (f(x[None, None], 2), f(x[None, None], [2, 2], 1, 1)),
    "constant_pad_nd": lambda f, x, y: f(x, [1, 1]),
    "nan_to_num": lambda f, x, y: f(x, posinf=1.0),
    "einsum": lambda f, x, y: f("ij,jk->ik", [x, y], path=None),
    "topk": lambda f, x, y: f(x, 2, largest=False),
    "linalg_svd": lambda f, x, y: f(x, full_matrices=False),
    "item": lambda f, x, y: f(x[0, 0]),
    "to.dtype": lambda f, x, y: f(x, torch.float16),
    "bernoulli.p": lambda f, x, y: f(x, 0.5, generator=None),
    "searchsorted.Tensor": lambda f, x, y: f(torch.arange(5.0), x, side="right"),
    "_cummax_helper": lambda f, x, y: (f(x, y, y.long(), 0), y),
}


def direct(name: str) -> Any:
    """The operator itself."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def outcome(call: Callable[[Any, Any, Any], Any], function: Any) -> Any:
    try:
        return call(function, *tensors())
    except (RuntimeError, TypeError) as error:
        return str(error)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_direct_call(wrappers: Any, name: str) -> None:
    call = CALLS[name]
    wrapper = getattr(wrappers, name.replace(".", "_"))
    expected = outcome(call, direct(name))
    assert not isinstance(expected, str), expected
    assert same(expected, outcome(call, wrapper))
    handle = add_global_callback(
        RecordFunctionCallback(lambda fn: None).needs_inputs(True).needs_outputs(True)
    )
    try:
        assert Watched.now
        assert same(expected, outcome(call, wrapper))
        traced: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for force_outplace in (False, True):
                trace(lambda: traced.append(outcome(call, wrapper)), force_outplace=force_outplace)
        assert all(same(expected, each) for each in traced)
    finally:
        remove_callback(handle)


def test_an_error_is_the_operators(wrappers: Any) -> None:
    x = torch.rand(2)
    y = torch.rand(3)
    with pytest.raises(RuntimeError) as expected:
        torch.ops.aten.add.Tensor(x, y)
    with pytest.raises(RuntimeError) as raised:
        wrappers.add_Tensor(x, y)
    assert str(raised.value) == str(expected.value)


# --- graphs


def convolution(w: Any, x: Any, weight: Any, bias: Any) -> Any:
    image = w.view(x, [1, 1, 4, 4])
    kernel = w.view(weight, [1, 1, 4, 4])
    ones = [1, 1]
    found = w._convolution(
        image, kernel, None, ones, [2, 2], ones, False, [0, 0], 1, False, False, False, False
    )
    return w.flatten_using_ints(w.max_pool2d(w.relu_(found), 2), 1), w.layer_norm(x, [4], bias)


def recurrent(w: Any, x: Any, weight: Any, hidden: Any) -> Any:
    states = []
    for number in range(3):
        hidden = w.tanh(
            w.add_Tensor(w.mm(w.unsqueeze(w.select_int(x, 0, number), 0), weight), hidden)
        )
        states.append(hidden)
    return w.stack(states), hidden


def in_place(w: Any, x: Any, y: Any, _z: Any) -> Any:
    z = w.clone(x)
    w.add__Tensor(z, y, alpha=2)
    other = w.zeros_like(z)
    w.fill__Scalar(other, 1.5)
    w.add_out(z, other, out=other)
    values, indices = w.max_dim(other, 1)
    parts = w.split_Tensor(other, 2)
    return w.cat([parts[0], parts[1]], 1), values, w.index_Tensor(x, [None, indices])


MODELS = {
    "convolution": convolution,
    "recurrent": recurrent,
    "in_place": in_place,
}


@pytest.mark.parametrize("force_outplace", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_graphs_have_the_nodes_of_pytorchs_tracer(
    wrappers: Any, name: str, force_outplace: bool
) -> None:
    shapes = {
        "recurrent": ((4, 4), (4, 4), (1, 4)),
        "convolution": ((4, 4), (4, 4), (4,)),
    }
    inputs = [torch.rand(shape) for shape in shapes.get(name, ((4, 4), (4, 4), (4, 4)))]

    def model(*args: Any) -> Any:
        return MODELS[name](wrappers, *args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = trace(model, *(each.clone() for each in inputs), force_outplace=force_outplace)
        example = tuple(each.clone() for each in inputs)
        theirs = torch.jit.trace(
            model, example, check_trace=False, _force_outplace=force_outplace
        ).graph
    assert ours.kinds() == [node.kind() for node in theirs.nodes()]
    numbers = {value.debugName(): number for number, value in enumerate(_values(theirs))}
    ours_numbers = {value: number for number, value in enumerate(_values(ours))}
    assert [[ours_numbers[each] for each in node.inputs] for node in ours.nodes] == [
        [numbers[each.debugName()] for each in node.inputs()] for node in theirs.nodes()
    ]


@pytest.mark.parametrize("name", ["add_", "abs_out"])
def test_a_warning_of_shared_data_names_the_operator_as_pytorchs_does(
    wrappers: Any, name: str
) -> None:
    def ours(x: Any, written: Any, _view: Any) -> Any:
        return (
            wrappers.add__Tensor(written, x) if name == "add_" else wrappers.abs_out(x, out=written)
        )

    def theirs(x: Any, written: Any, _view: Any) -> Any:
        return written.add_(x) if name == "add_" else torch.abs(x, out=written)

    written = torch.rand(4)
    with pytest.warns(torch.jit.TracerWarning, match=rf"in-place operator {name}\."):
        torch.jit.trace(
            theirs, (torch.rand(4), written, written[:2]), check_trace=False, _force_outplace=True
        )
    with pytest.warns(TracerWarning, match=f"data that aten::{name} writes in place"):
        trace(ours, torch.rand(4), written, written[:2], force_outplace=True)


def _values(graph: Any) -> list[Any]:
    """Inputs, then outputs of nodes, in order."""

    def of(part: Any) -> Any:
        return part() if callable(part) else part

    return [*of(graph.inputs), *(each for node in of(graph.nodes) for each in of(node.outputs))]


# --- in PyTorch's surroundings


def test_sequence_numbers_are_those_of_the_operators_inside(wrappers: Any) -> None:
    x = torch.rand(2, requires_grad=True)
    with profile() as prof:
        wrappers.sin(x).sum().backward()
        with torch.no_grad():
            wrappers.cos(x)
    numbers = [
        each.sequence_nr for each in prof.events() if each.name in ("aten::sin", "aten::cos")
    ]
    assert numbers[0] == numbers[1] >= 0
    assert numbers[2] == -1


def test_gradients_go_through_wrappers(wrappers: Any) -> None:
    x = torch.rand(3, requires_grad=True)
    handle = add_global_callback(RecordFunctionCallback(lambda fn: None))
    try:
        (wrappers.mul_Tensor(x, x)).sum().backward()
    finally:
        remove_callback(handle)
    assert torch.equal(x.grad, 2 * x.detach())


def test_compiled_code_has_the_operators_without_wrappers(wrappers: Any) -> None:
    pytest.importorskip("torch._dynamo")
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def model(x: Any) -> Any:
        return wrappers.zeros_like(wrappers.relu_(wrappers.add_Tensor(x, x, alpha=2)))

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.rand(3)
    assert torch.equal(compiled(x), model(x))
    with profile():
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called == ["aten.add.Tensor", "aten.relu_.default", "aten.zeros_like.default"]
