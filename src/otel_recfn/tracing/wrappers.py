"""What generated modules import: where the operators of a schema file are found, which their wrappers call.

_LIB_mylib = Library("mylib", "mylib.kernels:FUNCTIONS")
_OP_add = _LIB_mylib.operator("add", "", {"self": "Tensor", "other": "Tensor"}, ("Tensor",), Recorded("add"))

def add(self, other):
    if not Watched.now:
        return _OP_add.target(self, other)
    return _OP_add.observed((self, other), {})

Operators of a library are

torch.ops.mylib                                operators of PyTorch, by name and overload
{"add": ..., "mylib::add.Tensor": ...}         a registry of Python functions
a module, or a class, with a function for each operator
def find(name): ...                            a function that is asked for each, by name and overload: "mylib::add.Tensor"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from keyword import iskeyword
from types import FunctionType, MethodType
from typing import Any

from otel_recfn.model.errors import INT64, OperatorMissingError, whole_number
from otel_recfn.pytorch.compiling import trace_instead
from otel_recfn.pytorch.details import find
from otel_recfn.recording.watched import Unwatched, Watched
from otel_recfn.tracing.operator import Constant, Guard, Operator, Option, Recorded, Schema

__all__ = ["Constant", "Guard", "Library", "Option", "Recorded", "Watched", "torch_library"]

log = logging.getLogger("otel_recfn")


class Library:
    """The operators of one namespace.

    Args:
        namespace: theirs.
        operators: where they are found, see above; or that as a text, ``module:attribute``, which is imported here.
        sequence_nr: tells which sequence number the operator that is called next in this thread has; None: what is found by
            this name among the operators, or -1.
    """

    def __init__(self, namespace: str, operators: Any, sequence_nr: Callable[[], int] | None = None) -> None:
        self.namespace = namespace
        self._operators = operators
        self._sequence_nr = sequence_nr

    def operator(
        self,
        name: str,
        overload: str,
        arguments: Mapping[str, str],
        returns: tuple[str, ...],
        in_place: Recorded | None = None,
        out_of_place: Recorded | None = None,
        guard: Guard | None = None,
    ) -> Operator:
        """An operator of this library. Arguments and returns with their types as schemas write them; see Operator."""
        target = self._find(name, overload) or self._late(name, overload)
        schema = Schema(f"{self.namespace}::{name}", overload, arguments, returns)
        return Operator(schema, target, self.sequence_nr, in_place, out_of_place or in_place, guard)

    def sequence_nr(self) -> int:
        """The sequence number of the operator that is called next in this thread."""
        if self._sequence_nr is None:
            self._sequence_nr = self._among_operators() or no_sequence_nr
        try:
            return whole_number(self._sequence_nr(), "sequence_nr", INT64)
        except Exception:  # the library's own function
            self._sequence_nr = no_sequence_nr
            log.warning("sequence_nr of %s failed and was removed; its ranges have none", self.namespace, exc_info=True)
            return -1

    def _among_operators(self) -> Callable[[], int] | None:
        operators = self._there()
        if isinstance(operators, Mapping):
            return operators.get("sequence_nr")
        return None if _is_function(operators) else getattr(operators, "sequence_nr", None)

    def _find(self, name: str, overload: str) -> Callable[..., Any] | None:
        operators = self._there()
        if isinstance(operators, Mapping):
            found = next((operators[key] for key in self._keys(name, overload) if key in operators), None)
        elif _is_function(operators):
            found = operators(self._full(name, overload))
        else:
            found = _overload_in_torch(operators, name, overload) or _function(operators, name, overload)
        return found if callable(found) else None

    def _there(self) -> Any:
        """Where operators are found; None as long as a module that is being imported has no such attribute."""
        if isinstance(self._operators, str):
            module, _, path = self._operators.partition(":")
            found: Any = import_module(module)
            for attribute in path.split(".") if path else ():
                found = getattr(found, attribute, None)
            if found is None:
                return None
            self._operators = found
        return self._operators

    def _full(self, name: str, overload: str) -> str:
        return f"{self.namespace}::{name}" + (f".{overload}" if overload else "")

    def _keys(self, name: str, overload: str) -> Iterator[str]:
        for full in (f"{name}.{overload}", name) if overload else (name,):
            yield f"{self.namespace}::{full}"
            yield full

    def _late(self, name: str, overload: str) -> Callable[..., Any]:
        """Looks for an operator, which isn't there yet, when it is called: its module may import the wrappers."""

        found: Callable[..., Any] | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal found
            found = found or self._find(name, overload)
            if found is None:
                where, full = self._operators, self._full(name, overload)
                raise OperatorMissingError(f"{where!r} has no operator {full}; register it before it is called")
            return found(*args, **kwargs)

        return call


def _overload_in_torch(operators: Any, name: str, overload: str) -> Any:
    """What ``torch.ops.mylib`` has; None where the operators are others, or lack this one."""
    packet = getattr(operators, name, None)
    return getattr(packet, overload or "default", None) if hasattr(packet, "overloads") else None


def _function(operators: Any, name: str, overload: str) -> Any:
    """What a module or class has: a function for this overload, or for all of them."""
    found = getattr(operators, f"{name}_{overload}", None) if overload else None
    return found or getattr(operators, f"{name}_" if iskeyword(name) else name, None)


def torch_library(namespace: str) -> Library:
    """The operators of a namespace in ``torch.ops``, with PyTorch's sequence numbers."""
    import torch

    peek = find("sequence_nr")
    if peek is None:
        return Library(namespace, getattr(torch.ops, namespace), no_sequence_nr)
    # As PyTorch's own ranges: a number where a node for the backward pass may be made.
    return Library(namespace, getattr(torch.ops, namespace), lambda: peek() if torch.is_grad_enabled() else -1)


def _is_function(operators: Any) -> bool:
    return isinstance(operators, FunctionType | MethodType)


def no_sequence_nr() -> int:
    """Of operators that have none."""
    return -1


trace_instead(Watched, Unwatched)
