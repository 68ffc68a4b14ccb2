"""``profile(python_calls=True).modules()`` and ``.optimizers()``: what parameters and gradients they had at the first call."""

from __future__ import annotations

import gc
import weakref

import pytest

from otel_recfn import profile
from otel_recfn.pytorch.called_objects import ParameterFacts, TensorFacts

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def facts(*shape: int) -> TensorFacts:
    meant = torch.empty(*shape)
    return TensorFacts(shape, tuple(meant.stride()), "torch.float32", "cpu")


def test_parameters_and_gradients_at_the_first_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    with profile(python_calls=True) as prof:
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
    outer, linear, relu = prof.modules()
    assert (outer.kind, outer.parameters, relu.kind) == ("Sequential", (), "ReLU")
    assert linear.parameters == (ParameterFacts("weight", facts(2, 3), None), ParameterFacts("bias", facts(2), None))
    names = [event.name for event in prof.events() if event.name.startswith("nn.Module: ")]
    assert names == [outer.name, linear.name, relu.name] * 2
    with profile(python_calls=True) as again:
        model(torch.ones(4, 3))
    assert [each.gradient for each in again.modules()[1].parameters] == [facts(2, 3), facts(2)]
    assert [each.gradient for each in linear.parameters] == [None, None]


@pytest.mark.parametrize("modules", [False, True])
def test_where_hooks_announce_modules_they_are_seen_too(modules: bool) -> None:
    model = torch.nn.Linear(3, 2)
    with profile(python_calls=True, modules=modules) as prof:
        model(torch.ones(4, 3))
    [linear] = prof.modules()
    assert [event.name for event in prof.events() if event.name == linear.name] == [linear.name]


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
    assert (weight.name, weight.tensor, weight.gradient) == ("0.0", facts(2, 3), facts(2, 3))
    assert (bias.name, bias.state["exp_avg"], bias.state["step"].shape) == ("1.0", facts(2), ())


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
    assert [each.parameters[0].tensor.shape for each in prof.modules()] == [(1, width) for width in range(1, 30)]


def test_a_module_with_attributes_of_its_own_is_no_error() -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __call__(self, batch: object) -> object:
            return super().__call__(batch)

        def forward(self, batch: object) -> object:
            return batch

    odd = Odd()
    odd.__dict__["_parameters"] = None
    with profile(python_calls=True) as prof:
        odd(1)
    assert [(each.kind, each.parameters) for each in prof.modules()] == [("Odd", ())]


def test_a_profile_has_those_of_its_own_tracing() -> None:
    model = torch.nn.Linear(3, 2)
    with profile(python_calls=True) as first:
        model(torch.ones(4, 3))
    with profile(python_calls=True) as second:
        pass
    with profile() as without:
        model(torch.ones(4, 3))
    assert ([len(each.modules()) for each in (first, second, without)]) == [1, 0, 0]
