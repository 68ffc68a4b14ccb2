"""The runtime of generated modules: where the operators of a schema file are found, and what their
wrappers do with calls.

    _LIB_mylib = Library("mylib", "mylib.kernels:FUNCTIONS")
    _OP_add = _LIB_mylib.operator(
        "add", "", {"self": "Tensor", "other": "Tensor"}, ("Tensor",), Recorded("add")
    )

    def add(self, other):
        if not Watched.now:
            return _OP_add.target(self, other)
        return _OP_add.observed((self, other), {})

Operators of a library are

torch.ops.mylib                                operators of PyTorch, by name and overload
{"add": ..., "mylib::add.Tensor": ...}         a registry of Python functions
a module, or a class, with a function for each operator
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from keyword import iskeyword
from types import FrameType
from typing import Any, NamedTuple

from otel_recfn import _native
from otel_recfn.callbacks import thread_locals
from otel_recfn.callbacks.input_texts import input_texts
from otel_recfn.callbacks.operations import record_outputs
from otel_recfn.callbacks.record_function import SHAPES, SOURCE, RecordFunction
from otel_recfn.callbacks.registry import get_step_callbacks
from otel_recfn.callbacks.thread_locals import ThreadState
from otel_recfn.errors import OperatorMissingError
from otel_recfn.model.events import RecordScope
from otel_recfn.pytorch.compiling import trace_instead
from otel_recfn.pytorch.details import find
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.watched import Unwatched, Watched
from otel_recfn.support.exceptions import failure
from otel_recfn.tracing.graph import Tracer

__all__ = ["Constant", "Library", "Option", "Recorded", "Watched", "torch_library"]

OURS = "otel_recfn."


class Constant(NamedTuple):
    """An input of a node that no argument gives."""

    name: str
    value: Any


class Option(NamedTuple):
    """An input of a node that is an option of an argument: its ``dtype``, for instance."""

    name: str
    argument: str
    option: str


class Recorded(NamedTuple):
    """The node that is recorded for a call."""

    kind: str
    """The operator's name, without namespace."""
    inputs: tuple[str | Constant | Option, ...] | None = None
    """Arguments by name; None for all."""
    outputs: tuple[str, ...] | None = None
    """The arguments that the operator writes its results to; None for its results."""
    out_of_place: Recorded | None = None
    """The kind and inputs with ``force_outplace``, if they are others."""
    guarded: str = ""
    """The written argument of which it is then checked that nobody else uses its data."""


class SchemaArgument(NamedTuple):
    """An argument or a result, as callbacks see it in ``operator_schema()``."""

    name: str
    type: str


@dataclass(eq=False)
class Operator:
    """An operator, its schema as callbacks see it, and the node that is recorded for its calls."""

    name: str
    """The name with the namespace."""
    overload_name: str
    """The overload; empty for the only or default one."""
    _arguments: Mapping[str, str]
    """The names and types of the arguments, in order."""
    _returns: Sequence[str]
    """The types of the results."""
    target: Callable[..., Any]
    """The operator itself."""
    _sequence_nr: Callable[[], int]
    """A function that gives the sequence number of the operator that is called next in this
    thread.
    """
    _node: Recorded | None
    """None if calls are not recorded in graphs."""

    @property
    def arguments(self) -> list[SchemaArgument]:
        """The schema's arguments, with their types."""
        return [SchemaArgument(name, type_) for name, type_ in self._arguments.items()]

    @property
    def returns(self) -> list[SchemaArgument]:
        """The schema's results."""
        return [SchemaArgument("", type_) for type_ in self._returns]

    def __str__(self) -> str:
        return f"{self.name}.{self.overload_name}" if self.overload_name else self.name

    def observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator while this thread is observed. What it raises goes on to the program.

        ``args``, then ``kwargs``, are all arguments in schema order.
        """
        state = thread_locals.current()
        step = get_step_callbacks(RecordScope.FUNCTION)
        if not step.callbacks:
            return (
                self._call_recorded(state, args, kwargs)
                if _native.recording()
                else self._call(state, args, kwargs)
            )
        range_ = RecordFunction(step)
        range_._hide_from_torch()  # PyTorch shows them its own operators
        inputs = (*args, *kwargs.values()) if range_.needs_inputs() else ()
        with range_:
            range_.before(
                self, inputs, dict(zip(self._arguments, inputs, strict=False)), self._sequence_nr()
            )
            result = self._call(state, args, kwargs)
            record_outputs(range_, self._results(result))
        return result

    def _call_recorded(
        self, state: ThreadState, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the operator in a range for the recorder alone, which takes half as long as a
        RecordFunction.
        """
        shapes, dtypes = (
            input_texts((*args, *kwargs.values()))
            if recorder.extras & SHAPES and (args or kwargs)
            else ("", "")
        )
        sequence_nr = self._sequence_nr()
        event_id = _native.begin(
            self.name,
            RecordScope.FUNCTION,
            SOURCE,
            sequence_nr=sequence_nr,
            shapes=shapes,
            dtypes=dtypes,
        )
        try:
            result = self._call(state, args, kwargs)
        except BaseException as error:
            text, stacktrace = failure(error)
            _native.end(event_id, text, stacktrace=stacktrace)
            raise
        _native.end(event_id)
        return result

    def _call(self, state: ThreadState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracer = state.tracer
        if tracer is None or self._node is None or not tracer.open or state.in_callback:
            return self.target(*args, **kwargs)
        return self._call_traced(state, tracer, self._node, args, kwargs)

    def _call_traced(
        self,
        state: ThreadState,
        tracer: Tracer,
        recorded: Recorded,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Insert the node, call the operator with tracing off, then give the node its outputs."""
        named_arguments = dict(zip(self._arguments, (*args, *kwargs.values()), strict=True))
        described = (
            recorded.out_of_place
            if tracer.force_outplace and recorded.out_of_place is not None
            else recorded
        )
        kind = f"{self.name.partition('::')[0]}::{described.kind}"
        node = tracer.insert(kind, self._inputs(described, named_arguments), _caller())
        if recorded.guarded:
            tracer.warn_about_others(
                self._name_in_cpp(recorded.guarded), named_arguments[recorded.guarded]
            )
        state.tracer = None
        try:
            result = self.target(*args, **kwargs)
        finally:
            state.tracer = tracer
        written = recorded.outputs
        tracer.set_outputs(
            node,
            self._results(result)
            if written is None
            else [named_arguments[name] for name in written],
        )
        return result

    def _name_in_cpp(self, written: str) -> str:
        """The name that PyTorch's C++ API has for an operator that writes this argument: an out
        variant's says so.
        """
        return self.name if written == "self" else f"{self.name}_out"

    def _results(self, result: Any) -> Sequence[Any]:
        """The results: several come as a tuple or list, which is one result if the schema has
        one.
        """
        if result is None:
            return ()
        return result if len(self._returns) > 1 and isinstance(result, tuple | list) else (result,)

    def _inputs(
        self, recorded: Recorded, named_arguments: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        for each in self._arguments if recorded.inputs is None else recorded.inputs:
            if isinstance(each, str):
                yield each, _as_declared(named_arguments[each], self._arguments[each])
            elif isinstance(each, Constant):
                yield each
            else:
                yield each.name, _option(named_arguments[each.argument], each.option)


def _as_declared(value: Any, type_: str) -> Any:
    """The argument as its schema declares it: one number may be given for a list, and a tuple
    for a list.
    """
    declared = type_.removesuffix("?")
    if not declared.endswith("]") or value is None:
        return value
    if isinstance(value, list | tuple):
        return list(value)
    size = declared.rpartition("[")[2].rstrip("]")
    return [value] * int(size) if size else value


def _option(tensor: Any, option: str) -> Any:
    """The option that a factory would need to make such a tensor; None if the tensor has none."""
    try:
        return tensor.is_pinned() if option == "pin_memory" else getattr(tensor, option)
    except Exception:  # the program's own object may raise when it is asked
        return None


def _caller() -> FrameType | None:
    """The frame of the program that called the wrapper."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    frame = frame.f_back if frame is not None else None  # the wrapper's frame
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(OURS):
        frame = frame.f_back
    return frame


# --- the operators of a library


def no_sequence_nr() -> int:
    """-1, the sequence number of operators that have none."""
    return -1


class Library:
    """The operators of one namespace.

    Args:
        namespace: theirs.
        operators: where they are found, see above; or that as a text, ``module:attribute``, which
            is imported here.
        sequence_nr: gives the sequence number of the operator that is called next in this thread.
    """

    def __init__(
        self, namespace: str, operators: Any, sequence_nr: Callable[[], int] = no_sequence_nr
    ) -> None:
        self.namespace = namespace
        self._operators = operators
        self._sequence_nr = sequence_nr

    def operator(
        self,
        name: str,
        overload: str,
        arguments: Mapping[str, str],
        returns: tuple[str, ...],
        node: Recorded | None = None,
    ) -> Operator:
        """An operator of this library.

        Arguments and returns with their types as schemas write them; see Operator.
        """
        target = self._find(name, overload) or self._find_when_called(name, overload)
        return Operator(
            f"{self.namespace}::{name}",
            overload,
            arguments,
            returns,
            target,
            self._sequence_nr,
            node,
        )

    def _find(self, name: str, overload: str) -> Callable[..., Any] | None:
        operators = self._found_operators()
        if isinstance(operators, Mapping):
            found = next(
                (
                    operators[key]
                    for key in self._possible_names(name, overload)
                    if key in operators
                ),
                None,
            )
        else:
            found = _overload_in_torch(operators, name, overload) or _function(
                operators, name, overload
            )
        return found if callable(found) else None

    def _found_operators(self) -> Any:
        """The operators; None as long as a module that is being imported has no such attribute."""
        if not isinstance(self._operators, str):
            return self._operators
        module, _, path = self._operators.partition(":")
        found: Any = import_module(module)
        for attribute in path.split(".") if path else ():
            found = getattr(found, attribute, None)
        return found

    def _possible_names(self, name: str, overload: str) -> Iterator[str]:
        for full in (f"{name}.{overload}", name) if overload else (name,):
            yield f"{self.namespace}::{full}"
            yield full

    def _find_when_called(self, name: str, overload: str) -> Callable[..., Any]:
        """A function that looks for an operator when it is called, as its module may import the
        wrappers.
        """

        found: Callable[..., Any] | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal found
            found = found or self._find(name, overload)
            if found is None:
                full = next(self._possible_names(name, overload))
                raise OperatorMissingError(
                    f"{self._operators!r} has no operator {full}; register it before it is called"
                )
            return found(*args, **kwargs)

        return call


def _overload_in_torch(operators: Any, name: str, overload: str) -> Any:
    """The operator in ``torch.ops``; None if the operators are others, or lack this one."""
    packet = getattr(operators, name, None)
    return getattr(packet, overload or "default", None) if hasattr(packet, "overloads") else None


def _function(operators: Any, name: str, overload: str) -> Any:
    """The function of a module or class for this overload, or for all overloads."""
    found = getattr(operators, f"{name}_{overload}", None) if overload else None
    return found or getattr(operators, f"{name}_" if iskeyword(name) else name, None)


def torch_library(namespace: str) -> Library:
    """The operators of a namespace in ``torch.ops``, with PyTorch's sequence numbers."""
    import torch

    peek = find("sequence_nr")
    if peek is None:
        return Library(namespace, getattr(torch.ops, namespace))
    # As PyTorch's own ranges: a number where a node for the backward pass may be made.
    return Library(
        namespace, getattr(torch.ops, namespace), lambda: peek() if torch.is_grad_enabled() else -1
    )


trace_instead(Watched, Unwatched)
