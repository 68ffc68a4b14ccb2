"""A recorded graph: nodes in the order of the calls, which take and give values.

    graph(%0 : float32(4, 2), %1 : float32(2, 2)):
      %2 : float32(4, 2) = aten::mm(%0, %1)  # model.py:12
      return (%2)

Constants and lists are nodes of their own, by PyTorch's names: ``prim::Constant``, ``prim::ListConstruct``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

CONSTANT = "prim::Constant"


class Source(NamedTuple):
    """The line of the program that called an operator."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Value:
    """What a node gives: numbered in the order in which values came into the graph."""

    number: int
    type: str
    """A tensor's dtype and shape, or the name of the Python type."""

    def __str__(self) -> str:
        return f"%{self.number}"

    @property
    def declared(self) -> str:
        """The value with its type."""
        return f"{self} : {self.type}"


@dataclass(eq=False)
class Node:
    """A call of an operator, a constant, or a list that is made of values."""

    kind: str
    """Namespace and name: ``aten::add``."""
    inputs: Sequence[Value] = ()
    names: Sequence[str] = ()
    """Of the inputs, in their order, as the operator calls them."""
    outputs: Sequence[Value] = ()
    """None where the call raised."""
    constant: Any = None
    """A constant's value."""
    source: Source | None = None

    def __str__(self) -> str:
        given = ", ".join(each.declared for each in self.outputs)
        text = f"{given} = {self.kind}" if given else self.kind
        text += f"[value={_shown(self.constant)}]()" if self.kind == CONSTANT else f"({', '.join(map(str, self.inputs))})"
        return f"{text}  # {self.source}" if self.source else text

    def is_like(self, other: Node) -> bool:
        """Whether both do the same with the same values, wherever the program called them."""
        return (
            (self.kind, *self.inputs) == (other.kind, *other.inputs)
            and tuple(self.outputs) == tuple(other.outputs)
            and _same(self.constant, other.constant)
        )


@dataclass(eq=False)
class Graph:
    """What a traced function did. Graphs are equal where the same operators were called with the same values."""

    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def kinds(self) -> list[str]:
        """The nodes' kinds in order."""
        return [node.kind for node in self.nodes]

    def operators(self) -> Iterator[Node]:
        """The nodes that are calls: without constants, lists and tuples."""
        return (node for node in self.nodes if not node.kind.startswith("prim::"))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Graph)
            and (self.inputs, self.outputs, len(self.nodes)) == (other.inputs, other.outputs, len(other.nodes))
            and all(ours.is_like(theirs) for ours, theirs in zip(self.nodes, other.nodes, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # it has an order of nodes that may grow

    def __str__(self) -> str:
        lines = [f"graph({', '.join(each.declared for each in self.inputs)}):"]
        lines += [f"  {node}" for node in self.nodes]
        return "\n".join([*lines, f"  return ({', '.join(map(str, self.outputs))})"])


def type_text(value: Any) -> str:
    """A tensor's dtype and shape; else the name of the type."""
    try:
        if is_tensor(value):
            return f"{str(value.dtype).removeprefix('torch.')}({', '.join(str(int(size)) for size in value.shape)})"
    except Exception:  # the program's own object: a lazy or exotic tensor may refuse
        pass
    return type(value).__name__


def is_tensor(value: Any) -> bool:
    """Whether it has a shape and a dtype, as tensors and arrays do; their types are none."""
    try:
        return not isinstance(value, type) and hasattr(value, "shape") and hasattr(value, "dtype")
    except Exception:  # the program's own object, which may raise when it is asked
        return False


def _shown(value: Any) -> str:
    if is_tensor(value):
        return f"<{type_text(value)}>"
    try:
        return repr(value)
    except Exception:  # the program's own object
        return f"<{type(value).__name__}>"


def _same(one: Any, other: Any) -> bool:
    """Whether two constants are the same: of the same type, and equal in all elements."""
    if one is other:
        return True
    if type(one) is not type(other) or type_text(one) != type_text(other):
        return False
    try:
        if is_tensor(one):
            return bool(((one == other) | ((one != one) & (other != other))).all())
        return bool(one == other or repr(one) == repr(other) == "nan")
    except Exception:  # objects of the program's that can't be compared
        return False
