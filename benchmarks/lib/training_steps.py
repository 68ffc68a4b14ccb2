"""Training steps of a small transformer as rows: modules and operators, backward in a thread of
its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.batches import BASE_NS
from otel_recfn.model.events import NODES_PREFIX, make_event_id

BLOCKS = 7

Tree = tuple[str, list[Any]]


def op(name: str, *below: Tree) -> Tree:
    """A range, and what lies in it."""
    return name, list(below)


def step() -> Tree:
    """The ranges of a training step in the main thread; what lies in `backward` runs in another."""
    blocks = [block(f"layers.{number}") for number in range(BLOCKS)]
    backward = [block_backward() for _ in range(BLOCKS)]
    below = [nodes for each in backward for nodes in each]
    optimizer = [
        op("aten::_foreach_lerp_"),
        op("aten::_foreach_mul_"),
        op("aten::_foreach_addcmul_"),
        op("aten::_foreach_sqrt"),
    ]
    return op(
        "step",
        op("forward", *blocks, loss()),
        op("backward", *below),
        op("Optimizer.step#AdamW.step", *optimizer),
    )


def block(name: str) -> Tree:
    attention = [linear(f"{name}.attention.{each}") for each in "qkvo"]
    scores = [matmul(), op("aten::softmax", op("aten::_softmax")), op("aten::dropout"), matmul()]
    mlp = [linear(f"{name}.mlp.{each}") for each in ("up", "down")]
    return op(
        f"nn.Module: {name}",
        layer_norm(f"{name}.norm1"),
        op(f"nn.Module: {name}.attention", *attention, *scores),
        layer_norm(f"{name}.norm2"),
        op(f"nn.Module: {name}.mlp", mlp[0], op("aten::gelu"), mlp[1]),
        op("aten::add"),
        op("aten::add"),
    )


def linear(name: str) -> Tree:
    return op(
        f"nn.Module: {name}", op("aten::linear", transposed(), op("aten::addmm", op("aten::copy_")))
    )


def transposed() -> Tree:
    return op("aten::t", op("aten::transpose", op("aten::as_strided")))


def matmul() -> Tree:
    views = [
        op("aten::expand", op("aten::as_strided")),
        op("aten::reshape", op("aten::_reshape_alias")),
    ] * 2
    return op("aten::matmul", *views, op("aten::bmm"), op("aten::_unsafe_view"))


def layer_norm(name: str) -> Tree:
    return op(
        f"nn.Module: {name}",
        op("aten::layer_norm", op("aten::native_layer_norm", op("aten::empty"), op("aten::empty"))),
    )


def loss() -> Tree:
    return op(
        "aten::cross_entropy_loss",
        op("aten::log_softmax", op("aten::_log_softmax")),
        op("aten::nll_loss"),
    )


def block_backward() -> list[Tree]:
    """Linear layers' and some others', with the gradients that they add up."""
    linear_nodes = [
        node_tree(
            "AddmmBackward0",
            transposed(),
            op("aten::mm"),
            transposed(),
            op("aten::mm"),
            op("aten::sum"),
        ),
        gradient(),
    ]
    others = (
        "SoftmaxBackward0",
        "GeluBackward0",
        "NativeLayerNormBackward0",
        "AddBackward0",
        "ViewBackward0",
    )
    small = [node_tree(name, op(f"aten::{name.lower()}", op("aten::empty"))) for name in others]
    return [*linear_nodes * 6, *small, *small]


def node_tree(name: str, *below: Tree) -> Tree:
    return op(NODES_PREFIX + name, op(name, *below))


def gradient() -> Tree:
    node = "torch::autograd::AccumulateGrad"
    return node_tree(node, op("aten::detach", op("detach")), op("aten::add_"))


class Row(NamedTuple):
    """A range that has ended."""

    unit: int
    event_id: int
    parent: int
    name: str
    start_ns: int
    duration_ns: int


@dataclass
class Program:
    """Runs trees of ranges."""

    rows: list[Row] = field(default_factory=list)
    clock_ns: int = BASE_NS
    _begun: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    _draw: random.Random = field(default_factory=lambda: random.Random(0))

    def run(self, tree: Tree, unit: int, parent: int = 0, thread: int = 1) -> None:
        """A range with all that lies in it; one in three operators takes much longer than the
        others.
        """
        name, below = tree
        self._begun[thread] += 1
        event_id = make_event_id(thread, self._begun[thread])
        start = self.clock_ns
        self.clock_ns += 500
        for each in below:
            self.run(each, unit, event_id, 2 if name == "backward" else thread)
        self.clock_ns += 500 + int(self._draw.lognormvariate(7, 1.5))
        self.rows.append(Row(unit, event_id, parent, name, start, self.clock_ns - start))


def program(steps: int) -> list[Row]:
    """The rows of so many steps, in the order of their ends, each step a unit."""
    made = Program()
    tree = step()
    for number in range(steps):
        made.run(tree, number)
    return made.rows


def paths(rows: Sequence[Row]) -> int:
    """How many distinct paths of names there are."""
    found: dict[int, tuple[str, ...]] = {0: ()}
    for row in reversed(rows):
        found[row.event_id] = (*found[row.parent], row.name)
    return len(set(found.values())) - 1
