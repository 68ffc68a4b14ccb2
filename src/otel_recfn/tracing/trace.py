"""``trace(fn, *args)``: runs a function and records into a graph which operators it calls through generated wrappers.

A node is inserted before its operator runs, and is given its outputs after that (source: PyTorch's ``tracer.cpp``).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from otel_recfn.callbacks import thread_locals
from otel_recfn.model.errors import TraceError
from otel_recfn.recording.watched import unwatch, watch
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.weak_identity import WeakIdentityMap
from otel_recfn.tracing.graph import CONSTANT, Graph, Node, Source, Value, is_tensor, type_text

LIST, TUPLE, DICT, UNPACK = "prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct", "prim::ListUnpack"

DEEPEST = 20
"""A list that is nested deeper, or within itself, is a constant."""
PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of constants: that two objects of them are the same one says nothing."""


def trace(fn: Callable[..., Any], /, *args: Any, force_outplace: bool = False) -> Graph:
    """Call ``fn(*args)`` in this thread, and record the operators that it calls through generated wrappers.

    The tensors in ``args`` (what has a ``shape`` and a ``dtype``) are the graph's inputs; other values are constants in it, as
    are tensors that come from elsewhere. Work that the function hands to other threads is recorded where it takes along this
    thread's ``ThreadLocalState`` (``propagate`` does). A trace inside a trace has a graph of its own, and the
    outer one has nothing of it.

    Args:
        fn: a function. What it raises goes on to the caller.
        args: for it.
        force_outplace: record operators that write in place, or into ``out``, as those that return their results.

    Raises:
        TraceError: ``fn`` returned a generator or coroutine, which hasn't run.
    """
    tracer = Tracer(force_outplace)
    tracer.add_input(args)
    with tracing_into(tracer):
        result = fn(*args)
        if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
            raise TraceError(f"fn returned a {type(result).__name__}, which has not run yet; trace a function that runs it")
        tracer.finish(result)
    return tracer.graph


@contextmanager
def tracing_into(tracer: Tracer) -> Iterator[None]:
    """This thread records into the tracer; then into whatever it did before."""
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


# --- which value of the graph an object of the program is


class KnownValues:
    """Objects by identity. Those that can't be referred to weakly are kept until the trace ends."""

    def __init__(self) -> None:
        self._weak: WeakIdentityMap[Value] = WeakIdentityMap()
        self._kept: dict[int, tuple[Any, Value]] = {}

    def get(self, thing: Any) -> Value | None:
        """The object's value, or None."""
        kept = self._kept.get(id(thing))
        return kept[1] if kept is not None else self._weak.get(thing)

    def set(self, thing: Any, value: Value) -> None:
        """The object is this value from now on: what wrote to it last."""
        try:
            self._weak.set(thing, value)
        except TypeError:  # numpy's scalars, for instance
            self._kept[id(thing)] = (thing, value)

    def living(self) -> list[Any]:
        """The objects that live now."""
        return [*self._weak.living(), *(thing for thing, _ in self._kept.values())]


def shares_data(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory, as far as they say: PyTorch's storages, or numpy's bases."""
    data = _data(one)
    return data is not None and data == _data(other)


def _data(tensor: Any) -> tuple[str, int] | None:
    try:
        if hasattr(tensor, "untyped_storage"):
            address = tensor.untyped_storage().data_ptr()
            return ("storage", address) if address else None  # tensors without memory have no address
        if not hasattr(tensor, "__array_interface__"):
            return None
        while getattr(tensor, "base", None) is not None:
            tensor = tensor.base
        return "array", id(tensor)
    except Exception:  # a tensor without storage
        return None
