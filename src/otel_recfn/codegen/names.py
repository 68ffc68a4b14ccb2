"""Names of operators and arguments as Python's: reserved words, and what written modules use themselves, get an underscore."""

from __future__ import annotations

import keyword
import re

from otel_recfn.codegen.operators import OperatorName

RUNTIME = ("Constant", "Guard", "Library", "Option", "Recorded", "Watched", "torch_library")
"""What written modules import from ``tracing/wrappers.py``."""
IMPORTED = frozenset({*RUNTIME, "Annotated", "Any", "Sequence", "annotations", "torch"})
"""Names that they import."""
BUILTIN_HINTS = frozenset({"bool", "complex", "float", "int", "list", "str", "tuple"})
"""Builtin types that their hints use."""


def function_name(name: OperatorName) -> str:
    """The wrapper's name: that of the operator and of its overload."""
    full = f"{name.full}_{name.overload}" if name.overload else name.full
    return _usable(re.sub(r"\W", "_", full), IMPORTED | BUILTIN_HINTS)


def operator_name(wrapper: str) -> str:
    """The name of the Operator object beside a wrapper."""
    return f"_OP_{wrapper}"


def library_name(namespace: str) -> str:
    """The name of the Library object of a namespace."""
    return f"_LIB_{namespace}"


def parameter_name(name: str) -> str:
    """An argument's name in the wrapper's signature."""
    return _usable(name, frozenset({"Watched", "all_default", "torch"}))


def _usable(name: str, taken: frozenset[str]) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in taken or name == "__debug__" else name
