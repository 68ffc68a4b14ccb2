"""Builds a graph: inserts a node before its operator runs, gives it outputs after that (source: PyTorch's ``tracer.cpp``)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.tracing.graph import CONSTANT, Graph, Node, Source, Value, is_tensor, type_text
from otel_recfn.tracing.values import KnownValues, shares_data

LIST, TUPLE, DICT, UNPACK = "prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct", "prim::ListUnpack"

DEEPEST = 20
"""A list that is nested deeper, or within itself, is a constant."""
PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of constants: that two objects of them are the same one says nothing."""


class TracerWarning(UserWarning):
    """The recorded graph may do something else than the program."""


class Tracer:
    """Records into one graph, from whatever threads have it as theirs.

    Args:
        force_outplace: record operators that write in place as those that return their results.
    """

    def __init__(self, force_outplace: bool = False) -> None:
        self.graph = Graph()
        self.force_outplace = force_outplace
        self.open = True
        """Threads that were given this tracer may go on after the trace: they record no more."""
        self._known = KnownValues()
        self._lock = ForkSafeLock()
        self._numbers = 0
        self._within: list[int] = []
        """The lists, by identity, whose parts are being looked at."""

    def add_input(self, thing: Any) -> None:
        """Make the tensors in an argument of the traced function inputs of the graph."""
        for each in _leaves(thing):
            if is_tensor(each) and self._known.get(each) is None:
                self.graph.inputs.append(self._know(each))

    def insert(self, kind: str, inputs: Iterable[tuple[str, Any]], frame: FrameType | None) -> Node | None:
        """Insert a node with these inputs by name; what is no value of the graph yet is inserted as a constant before it.

        Returns None after the trace.
        """
        source = Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else None
        pairs = list(inputs)
        with self._lock:
            if not self.open:
                return None
            values = [self._value(thing, source) for _, thing in pairs]
            node = Node(kind, values, [name for name, _ in pairs], source=source)
            self.graph.nodes.append(node)
            return node

    def set_outputs(self, node: Node | None, results: Iterable[Any]) -> None:
        """The operator returned these, or wrote to them: they are the node's outputs from now on."""
        with self._lock:
            if node is not None and self.open:
                node.outputs = [self._output(each, node.source) for each in results]

    def warn_of_others(self, operator: str, written: Any) -> None:
        """Warn where somebody else uses the data that an operator writes, and the graph has it return a result instead."""
        if not self.force_outplace or not is_tensor(written):
            return
        with self._lock:
            others = sum(each is not written and shares_data(each, written) for each in self._known.living())
        if others:
            warnings.warn(
                f"{others} other tensors share the data that {operator} writes in place; the graph returns a new one instead, "
                "so these don't change in it. Write to a copy",
                TracerWarning,
                stacklevel=4,
            )

    def finish(self, result: Any) -> None:
        """The traced function returned this."""
        with self._lock:
            self.graph.outputs.append(self._value(result, None))

    def close(self) -> None:
        """Record no more."""
        with self._lock:
            self.open = False

    # --- inside, with the lock

    def _number(self, kind: str) -> Value:
        value = Value(self._numbers, kind)
        self._numbers += 1
        return value

    def _know(self, thing: Any) -> Value:
        value = self._number(type_text(thing))
        self._known.set(thing, value)
        return value

    def _value(self, thing: Any, source: Source | None) -> Value:
        """The value that an input is; a constant where it is none, or a node that makes it of its parts."""
        if isinstance(thing, list | tuple | dict) and len(self._within) < DEEPEST and id(thing) not in self._within:
            return self._made_of_parts(thing, source)
        known = None if type(thing) in PLAIN else self._known.get(thing)
        return known if known is not None else self._constant(thing, source)

    def _made_of_parts(self, thing: Any, source: Source | None) -> Value:
        self._within.append(id(thing))
        try:
            if isinstance(thing, dict):
                return self._made_of(DICT, [each for pair in thing.items() for each in pair], "dict", source)
            kind, name = (LIST, "list") if isinstance(thing, list) else (TUPLE, "tuple")
            return self._made_of(kind, thing, name, source)
        finally:
            self._within.pop()

    def _made_of(self, kind: str, parts: Sequence[Any], type_name: str, source: Source | None) -> Value:
        values = [self._value(each, source) for each in parts]
        made = self._number(type_name)
        self.graph.nodes.append(Node(kind, values, outputs=[made], source=source))
        return made

    def _constant(self, thing: Any, source: Source | None) -> Value:
        value = self._know(thing) if is_tensor(thing) else self._number(type_text(thing))
        self.graph.nodes.append(Node(CONSTANT, outputs=[value], constant=thing, source=source))
        return value

    def _output(self, thing: Any, source: Source | None) -> Value:
        """A result's value. A list of tensors is one value that is unpacked."""
        if not isinstance(thing, list | tuple):
            return self._know(thing)
        packed = self._number("list")
        self.graph.nodes.append(Node(UNPACK, [packed], outputs=[self._know(each) for each in thing], source=source))
        return packed


def _leaves(thing: Any) -> Iterator[Any]:
    """What is in lists, tuples and dicts, in order."""
    seen: set[int] = set()
    found = [thing]
    while found:
        each = found.pop()
        if not isinstance(each, list | tuple | dict):
            yield each
        elif id(each) not in seen:  # a list may have itself as a part
            seen.add(id(each))
            found += reversed(list(each.values() if isinstance(each, dict) else each))
