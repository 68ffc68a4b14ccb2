"""Names of operators and arguments as Python's: reserved words, and what written modules use themselves, get an underscore."""

from __future__ import annotations

import keyword
import re
import unicodedata

from otel_recfn.codegen.operators import OperatorName

RUNTIME = ("Constant", "Guard", "Library", "Option", "Recorded", "Watched", "torch_library")
"""What written modules import from ``tracing/wrappers.py``."""
IMPORTED = frozenset({*RUNTIME, "Annotated", "Any", "Sequence", "annotations", "torch"})
"""Names that they import."""
BUILTIN_HINTS = frozenset({"bool", "complex", "float", "int", "list", "str", "tuple"})
"""Builtin types that their hints use."""
MODULES_OWN = frozenset(
    {"__all__", "__annotations__", "__builtins__", "__cached__", "__class__", "__dict__", "__dir__", "__doc__", "__file__"}
    | {"__getattr__", "__loader__", "__name__", "__package__", "__path__", "__spec__"}
)
"""Names to which Python gives a meaning in every module."""
OBJECTS = ("_DEFAULT_", "_LIB_", "_OP_")
"""How names of objects in written modules begin: neither wrappers nor their arguments have such names."""


def function_name(name: OperatorName) -> str:
    """The wrapper's name: that of the operator and of its overload."""
    full = f"{name.full}_{name.overload}" if name.overload else name.full
    return f"{full}_" if re.fullmatch(r"wrappers_\d+", full) else _usable(full, IMPORTED | BUILTIN_HINTS | MODULES_OWN)


def is_name(text: str) -> bool:
    """Whether Python has this very name: it takes some letters for others, a ligature for its letters."""
    return text.isidentifier() and unicodedata.normalize("NFKC", text) == text


def is_objects(name: str) -> bool:
    """Whether it may be the name of an object in a written module."""
    return name.startswith(OBJECTS)


def operator_name(wrapper: str) -> str:
    """The name of the Operator object beside a wrapper."""
    return f"_OP_{wrapper}"


def library_name(namespace: str) -> str:
    """The name of the Library object of a namespace."""
    return f"_LIB_{namespace}"


def parameter_name(name: str) -> str:
    """An argument's name in the wrapper's signature."""
    return _usable(name, IMPORTED | {"all_default"})


def _usable(name: str, taken: frozenset[str]) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in taken or name == "__debug__" else name
