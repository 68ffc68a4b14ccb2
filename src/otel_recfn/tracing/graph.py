"""A recorded graph: nodes in the order of the calls, which take and give values.

    graph(%0 : float32(4, 2), %1 : float32(2, 2)):
      %2 : float32(4, 2) = aten::mm(%0, %1)  # model.py:12
      return (%2)

Constants and lists are nodes of their own, by PyTorch's names: ``prim::Constant``,
``prim::ListConstruct``.

``trace(fn, *args)`` runs a function and records into a graph which operators it calls through
generated wrappers. A node is inserted before its operator runs, and is given its outputs after that
(source: PyTorch's ``tracer.cpp``).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

from otel_recfn.callbacks import thread_locals
from otel_recfn.errors import TraceError
from otel_recfn.recording.watched import unwatch, watch
from otel_recfn.support.foreign import WeakIdentityMap
from otel_recfn.support.forks import ForkSafeLock

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
    """A value of the graph, numbered in the order in which values came into it."""

    number: int
    type: str
    """A tensor's dtype and shape, or the name of the Python type."""

    def __str__(self) -> str:
        return f"%{self.number}"

    @property
    def with_type(self) -> str:
        """The value with its type."""
        return f"{self} : {self.type}"


@dataclass(eq=False)
class Node:
    """A call of an operator, a constant, or a list that is made of values."""

    kind: str
    """The namespace and name: ``aten::add``."""
    inputs: Sequence[Value] = ()
    names: Sequence[str] = ()
    """The names of the inputs in their order, as the operator has them."""
    outputs: Sequence[Value] = ()
    """The outputs; None if the call raised."""
    constant: Any = None
    """The value of a constant."""
    source: Source | None = None

    def __str__(self) -> str:
        outputs_text = ", ".join(each.with_type for each in self.outputs)
        text = f"{outputs_text} = {self.kind}" if outputs_text else self.kind
        text += (
            f"[value={_text(self.constant)}]()"
            if self.kind == CONSTANT
            else f"({', '.join(map(str, self.inputs))})"
        )
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
    """The graph of a traced function.

    Graphs are equal if the same operators were called with the same values.
    """

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
            and (self.inputs, self.outputs, len(self.nodes))
            == (other.inputs, other.outputs, len(other.nodes))
            and all(
                ours.is_like(theirs) for ours, theirs in zip(self.nodes, other.nodes, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]  # it has an order of nodes that may grow

    def __str__(self) -> str:
        lines = [f"graph({', '.join(each.with_type for each in self.inputs)}):"]
        lines += [f"  {node}" for node in self.nodes]
        return "\n".join([*lines, f"  return ({', '.join(map(str, self.outputs))})"])


def type_text(value: Any) -> str:
    """A tensor's dtype and shape; else the name of the type."""
    try:
        if is_tensor(value):
            sizes = ", ".join(str(int(size)) for size in value.shape)
            return f"{str(value.dtype).removeprefix('torch.')}({sizes})"
    except Exception:  # a lazy or exotic tensor of the program's may refuse
        pass
    return type(value).__name__


def is_tensor(value: Any) -> bool:
    """Whether a value has a shape and a dtype, as tensors and arrays do, but not their types."""
    try:
        return not isinstance(value, type) and hasattr(value, "shape") and hasattr(value, "dtype")
    except Exception:  # the program's own object may raise when it is asked
        return False


def _text(value: Any) -> str:
    if is_tensor(value):
        return f"<{type_text(value)}>"
    try:
        return repr(value)
    except Exception:  # the program's own object
        return f"<{type(value).__name__}>"


def _same(one: Any, other: Any) -> bool:
    """Whether two constants, whose types are the same, are equal in all elements, or written the
    same.
    """
    try:
        if one is other or not is_tensor(one):
            return one is other or repr(one) == repr(other)
        return bool(((one == other) | ((one != one) & (other != other))).all())
    except Exception:  # objects of the program's that can't be compared
        return False


# --- recording

LIST, TUPLE, DICT, UNPACK = (
    "prim::ListConstruct",
    "prim::TupleConstruct",
    "prim::DictConstruct",
    "prim::ListUnpack",
)

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""The types of constants for which two references to one object mean nothing."""


def trace(fn: Callable[..., Any], /, *args: Any, force_outplace: bool = False) -> Graph:
    """Call ``fn(*args)`` in this thread, and record the operators that it calls through generated
    wrappers.

    The tensors in ``args`` (what has a ``shape`` and a ``dtype``) are the graph's inputs; other
    values are constants in it, as are tensors that come from elsewhere. Work that the function
    hands to other threads is recorded where it takes along this thread's ``ThreadLocalState``
    (``propagate`` does). A trace inside a trace has only a graph of its own.

    Args:
        fn: a function. What it raises goes on to the caller.
        args: for it.
        force_outplace: record operators that write in place, or into ``out``, as those that return
            their results.

    Raises:
        TraceError: ``fn`` returned a generator or coroutine, which hasn't run.
    """
    tracer = Tracer(force_outplace)
    tracer.add_input(args)
    with tracing_into(tracer):
        result = fn(*args)
        if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
            raise TraceError(
                f"fn returned a {type(result).__name__}, which has not run yet; trace a function"
                " that runs it"
            )
        tracer.finish(result)
    return tracer.graph


@contextmanager
def tracing_into(tracer: Tracer) -> Iterator[None]:
    """Record into the tracer in this thread, and afterwards into the one before."""
    state = thread_locals.current()
    outer, state.tracer = state.tracer, tracer
    watch(tracer)
    try:
        yield
    finally:
        state.tracer = outer
        tracer.close()
        unwatch(tracer)


class TracerWarning(UserWarning):
    """A warning that the recorded graph may do something else than the program."""


class Tracer:
    """A recorder of one graph, for all threads that were given it.

    ``force_outplace``: as in ``trace``.
    """

    def __init__(self, force_outplace: bool = False) -> None:
        self.graph = Graph()
        self.force_outplace = force_outplace
        self.open = True
        """Whether it records: threads that were given this tracer may go on after the trace."""
        self._known = KnownValues()
        self._lock = ForkSafeLock()
        self._numbers = 0

    def add_input(self, thing: Any) -> None:
        """Make the tensors in an argument of the traced function inputs of the graph."""
        for each in _leaves(thing):
            if is_tensor(each) and self._known.get(each) is None:
                self.graph.inputs.append(self._note_value(each))

    def insert(
        self, kind: str, inputs: Iterable[tuple[str, Any]], frame: FrameType | None
    ) -> Node | None:
        """Insert a node with these inputs by name; what is no value of the graph yet is inserted as
        a constant before it.

        Returns None after the trace.
        """
        source = (
            Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            if frame is not None
            else None
        )
        pairs = list(inputs)
        with self._lock:
            if not self.open:
                return None
            values = [self._value(thing, source) for _, thing in pairs]
            node = Node(kind, values, [name for name, _ in pairs], source=source)
            self.graph.nodes.append(node)
            return node

    def set_outputs(self, node: Node | None, results: Iterable[Any]) -> None:
        """Set the node's outputs: what its operator returned, or wrote to."""
        with self._lock:
            if node is not None and self.open:
                node.outputs = [self._output(each, node.source) for each in results]

    def warn_about_others(self, operator: str, written: Any) -> None:
        """Warn if somebody else uses the data that an operator writes, while the graph has it
        return a result instead.

        Args:
            operator: its name in PyTorch's C++ API, with the namespace: ``aten::add_``,
                ``aten::abs_out``.
            written: what it writes.
        """
        if not self.force_outplace or not is_tensor(written):
            return
        data = _data(written)
        with self._lock:
            others = sum(
                each is not written and _data(each) == data for each in self._known.living_objects()
            )
        if others and data is not None:
            warnings.warn(
                f"{others} other tensors share the data that {operator} writes in place; the graph"
                " returns a new one instead, so these don't change in it. Write to a copy",
                TracerWarning,
                stacklevel=4,
            )

    def finish(self, result: Any) -> None:
        """Set the result of the traced function."""
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

    def _note_value(self, thing: Any) -> Value:
        value = self._number(type_text(thing))
        self._known.set(thing, value)
        return value

    def _value(self, thing: Any, source: Source | None) -> Value:
        """The value of an input; a new constant if there is none, or a node that makes it of its
        parts.
        """
        if isinstance(thing, dict):
            return self._assemble(
                DICT, [each for pair in thing.items() for each in pair], "dict", source
            )
        if isinstance(thing, list | tuple):
            kind, name = (LIST, "list") if isinstance(thing, list) else (TUPLE, "tuple")
            return self._assemble(kind, thing, name, source)
        known = None if type(thing) in PLAIN else self._known.get(thing)
        return known if known is not None else self._constant(thing, source)

    def _assemble(
        self, kind: str, parts: Sequence[Any], type_name: str, source: Source | None
    ) -> Value:
        values = [self._value(each, source) for each in parts]
        made = self._number(type_name)
        self.graph.nodes.append(Node(kind, values, outputs=[made], source=source))
        return made

    def _constant(self, thing: Any, source: Source | None) -> Value:
        value = self._note_value(thing) if is_tensor(thing) else self._number(type_text(thing))
        self.graph.nodes.append(Node(CONSTANT, outputs=[value], constant=thing, source=source))
        return value

    def _output(self, thing: Any, source: Source | None) -> Value:
        """The value of a result. A list of tensors is one value that is unpacked."""
        if not isinstance(thing, list | tuple):
            return self._note_value(thing)
        packed = self._number("list")
        self.graph.nodes.append(
            Node(
                UNPACK, [packed], outputs=[self._note_value(each) for each in thing], source=source
            )
        )
        return packed


def _leaves(thing: Any) -> Iterator[Any]:
    """The elements of lists, tuples and dicts, in order."""
    if isinstance(thing, list | tuple | dict):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from _leaves(each)
    else:
        yield thing


# --- the values of the program's objects


class KnownValues:
    """The values of objects, by identity.

    Objects without weak references are kept until the trace ends.
    """

    def __init__(self) -> None:
        self._weak: WeakIdentityMap[Value] = WeakIdentityMap()
        self._values: dict[int, tuple[Any, Value]] = {}

    def get(self, thing: Any) -> Value | None:
        """The object's value, or None."""
        entry = self._values.get(id(thing))
        return entry[1] if entry is not None else self._weak.get(thing)

    def set(self, thing: Any, value: Value) -> None:
        """Set the object's value to what wrote to it last."""
        try:
            self._weak.set(thing, value)
        except TypeError:  # numpy's scalars, for instance
            self._values[id(thing)] = (thing, value)

    def living_objects(self) -> list[Any]:
        """The objects that live now."""
        return [*self._weak.living_keys(), *(thing for thing, _ in self._values.values())]


def _data(tensor: Any) -> tuple[str, int] | None:
    """The memory in which a tensor lies, as far as PyTorch's storages or numpy's bases show it."""
    try:
        if hasattr(tensor, "untyped_storage"):
            address = tensor.untyped_storage().data_ptr()
            # Tensors without memory have no address.
            return ("storage", address) if address else None
        if not hasattr(tensor, "__array_interface__"):
            return None
        while getattr(tensor, "base", None) is not None:
            tensor = tensor.base
        return "array", id(tensor)
    except Exception:  # a tensor without storage
        return None
