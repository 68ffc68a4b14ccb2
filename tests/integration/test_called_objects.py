"""``profile(python_calls=True).modules()`` and ``.optimizers()``: what parameters and gradients
they had at the first call.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from otel_recfn import PythonCalls, profile
from otel_recfn.pytorch.called_objects import ParameterFacts, TensorFacts

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def facts(of: Any) -> TensorFacts:
    assert of._cdata
    assert of.untyped_storage()._cdata
    return TensorFacts(
        tuple(of.shape),
        tuple(of.stride()),
        str(of.dtype),
        "cpu",
        "torch.strided",
        of._cdata,
        of.untyped_storage()._cdata,
    )


def test_parameters_and_gradients_at_the_first_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    with profile(python_calls=True) as prof:
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
    outer, linear, relu = prof.modules()
    assert (outer.kind, outer.parameters, relu.kind) == ("Sequential", (), "ReLU")
    weight, bias = model[0].weight, model[0].bias
    assert linear.parameters == (
        ParameterFacts("weight", facts(weight), None),
        ParameterFacts("bias", facts(bias), None),
    )
    assert [(each.self_id, each.class_id) for each in prof.modules()] == [
        (id(each), id(type(each))) for each in (model, model[0], model[1])
    ]
    names = [event.name for event in prof.events() if event.name.startswith("nn.Module: ")]
    assert names == [outer.name, linear.name, relu.name] * 2
    with profile(python_calls=True) as again:
        model(torch.ones(4, 3))
    assert [each.gradient for each in again.modules()[1].parameters] == [
        facts(weight.grad),
        facts(bias.grad),
    ]
    assert [each.gradient for each in linear.parameters] == [None, None]


@pytest.mark.parametrize("modules", [False, True])
def test_where_hooks_announce_modules_they_are_seen_too(modules: bool) -> None:
    model = torch.nn.Linear(3, 2)
    with profile(python_calls=True, modules=modules) as prof:
        model(torch.ones(4, 3))
    [linear] = prof.modules()
    assert [event.name for event in prof.events() if event.name == linear.name] == [linear.name]


@pytest.mark.parametrize("calls", [False, PythonCalls(include=[__file__])])
def test_there_are_none_where_calls_in_files_of_pytorch_are_not_traced(
    calls: bool | PythonCalls,
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with profile(python_calls=calls) as prof:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    assert (prof.modules(), prof.optimizers()) == ([], [])


def test_state_of_optimizers_after_their_first_step() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1}])
    with profile(python_calls=True) as prof:
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    [adam] = prof.optimizers()
    assert adam.kind == "Adam"
    weight, bias = adam.parameters
    assert (weight.name, weight.tensor, weight.gradient) == (
        "0.0",
        facts(model.weight),
        facts(model.weight.grad),
    )
    exp_avg = optimizer.state[model.bias]["exp_avg"]
    assert (bias.name, bias.state["exp_avg"], bias.state["step"].shape) == (
        "1.0",
        facts(exp_avg),
        (),
    )


def test_no_object_is_kept_alive_and_another_at_its_address_is_another() -> None:
    kept = []
    with profile(python_calls=True) as prof:
        for width in range(1, 30):
            module = torch.nn.Linear(width, 1)
            module(torch.ones(1, width))
            kept.append(weakref.ref(module))
            del module
        gc.collect()
        assert not [reference for reference in kept if reference() is not None]
    assert [each.parameters[0].tensor.shape for each in prof.modules()] == [
        (1, width) for width in range(1, 30)
    ]


def test_what_shares_memory_and_what_has_no_strides() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[2].weight = torch.nn.Parameter(model[0].weight.detach()[:2])
    model[2].mask = torch.nn.Parameter(torch.eye(3).to_sparse())
    with profile(python_calls=True) as prof:
        (
            model[:2](torch.ones(1, 3)),
            model[2].register_parameter("bias", None),
            model[2](torch.ones(1, 3)),
        )
    first, second, third = [each for each in prof.modules() if each.kind == "Linear"]
    own, shared, view = [each.parameters[0].tensor for each in (first, second, third)]
    assert own == shared
    assert (view.storage_id, view.tensor_id != own.tensor_id) == (own.storage_id, True)
    [mask] = [each.tensor for each in third.parameters if each.name == "mask"]
    assert (mask.layout, mask.strides, mask.storage_id) == ("torch.sparse_coo", (), 0)


def test_parameters_of_other_classes_are_left_out() -> None:
    class Own(torch.nn.Parameter):  # type: ignore[misc,unused-ignore]
        pass

    model = torch.nn.Linear(3, 2)
    model.weight = Own(torch.ones(2, 3))
    with profile(python_calls=True) as prof:
        model(torch.ones(4, 3))
    [linear] = prof.modules()
    assert [each.name for each in linear.parameters] == ["bias"]


def test_a_profile_has_those_of_its_own_run() -> None:
    before = torch.nn.Linear(3, 2)
    inside = torch.nn.Linear(3, 2)
    after = torch.nn.Linear(3, 2)
    batch = torch.ones(4, 3)
    with profile(python_calls=True) as outer:
        before(batch)
        with profile(python_calls=True) as inner:
            inside(batch), before(batch)
        after(batch)
    with profile(python_calls=True) as second:
        pass
    with profile() as without:
        after(batch)
    assert [each.self_id for each in outer.modules()] == [id(before), id(inside), id(after)]
    assert [each.self_id for each in inner.modules()] == [id(inside), id(before)]
    assert [len(each.modules()) for each in (second, without)] == [0, 0]
