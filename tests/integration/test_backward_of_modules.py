"""``tree("module")`` of real training: a backward pass is shown in the modules whose forward it
belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from otel_recfn import profile
from otel_recfn.batches.call_tree import CallPath

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from helpers.torch_programs import run_together  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn


class Checkpointed(nn.Module):  # type: ignore[misc, name-defined]
    """Calls its module again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def network(*first: Any) -> Any:
    return nn.Sequential(*(first or [nn.Linear(4, 4), nn.Tanh()]), nn.Linear(4, 1))


def lines(
    model: Any, run: Callable[[Callable[[], None]], None] = lambda step: step(), steps: int = 2
) -> dict[str, CallPath]:
    """Of some training steps, each line by its path."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 4, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        run(loss.backward)
        optimizer.step()

    step()
    with profile() as prof:
        for _ in range(steps):
            step()
    tree = prof.tree("module")
    assert sum(round(1000 * one.self_cpu_time_total) for one in tree) == sum(
        event.self_ns for event in prof.events()
    )
    return {"/".join([re.sub(r"_\d+$", "", part) for part in one.path]): one for one in tree}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in its thread", "in another thread"])
def test_each_module_has_its_backward(elsewhere: bool) -> None:
    found = lines(network(), run_together if elsewhere else lambda step: step())
    assert sorted(found) == sorted(
        [
            "Sequential", "Sequential/0", "Sequential/1", "Sequential/2", "(in no module)",
            "(accumulation of gradients)", "Optimizer.step#SGD.step",
            "Optimizer.zero_grad#SGD.zero_grad",
        ]
    )  # fmt: skip
    inner = [found[f"Sequential/{number}"] for number in range(3)]
    for one in inner:
        assert one.count == 2
        assert 0 < one.backward_cpu_time_total < one.self_cpu_time_total
    assert found["Sequential"].backward_cpu_time_total == pytest.approx(
        sum(one.backward_cpu_time_total for one in inner)
    )
    assert found["(in no module)"].backward_cpu_time_total > 0  # the loss's
    assert found["(accumulation of gradients)"].count == 2 * 5  # with that of the input


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_calls_again_is_shown_where_it_was_called(reentrant: bool) -> None:
    found = lines(network(Checkpointed(reentrant)))
    assert {path: found[path].count for path in found if path.startswith("Sequential")} == {
        "Sequential": 2,
        "Sequential/0": 2,
        "Sequential/0/inner": 4,
        "Sequential/0/inner/0": 4,
        "Sequential/0/inner/1": 4,
        "Sequential/1": 2,
    }
    assert found["Sequential/0/inner/0"].backward_cpu_time_total > 0


def test_a_compiled_module_has_its_backward(forget_what_was_compiled: None) -> None:
    found = lines(torch.compile(network(), backend="aot_eager"))
    (compiled,) = [one for path, one in found.items() if path == "OptimizedModule"]
    assert compiled.backward_cpu_time_total > 0


def test_what_an_optimizers_closure_does_is_beside_its_step() -> None:
    model = network()
    x = torch.ones(2, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with profile() as prof:
        optimizer.step(closure)
    tree = prof.tree("module")
    (call,) = [one for one in tree if one.name.startswith("Sequential")]
    assert call.path == (call.name,)
    assert call.backward_cpu_time_total > 0
    (step,) = [one for one in tree if one.name == "Optimizer.step#LBFGS.step"]
    (outside,) = [one for one in tree if one.name == "(in no module)"]
    by_name = {one.key: one for one in prof.key_averages()}
    assert outside.cpu_time_total >= by_name["aten::square"].cpu_time_total > 0  # of the loss
    assert call.cpu_time_total + step.cpu_time_total < by_name[step.name].cpu_time_total
