"""Names, types and defaults of schemas as Python writes them, for PyTorch's operators and for
others.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from otel_recfn.codegen.schemas import Argument, Operator, OperatorName, base_type
from otel_recfn.errors import SchemaError

# --- names: reserved words, and what written modules use themselves, get an underscore

RUNTIME = ("Constant", "Library", "Option", "Recorded", "Watched", "torch_library")
"""The names that written modules import from ``tracing/wrappers.py``."""
IMPORTED = frozenset({*RUNTIME, "Any", "Sequence", "annotations", "torch"})
"""The other names that they import."""
BUILTIN_HINTS = frozenset({"bool", "complex", "float", "int", "list", "str", "tuple"})
"""The builtin types in their hints."""


def function_name(name: OperatorName) -> str:
    """The wrapper's name: the operator's, with its overload."""
    return _usable(
        f"{name.full}_{name.overload}" if name.overload else name.full, IMPORTED | BUILTIN_HINTS
    )


def parameter_name(name: str) -> str:
    """The argument's name in the wrapper's signature."""
    return _usable(name, IMPORTED)


def _usable(name: str, taken: frozenset[str]) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in taken else name


# --- types and defaults

PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "DeviceIndex": "int",
        "Scalar": "complex",
        "SymBool": "bool",
        "SymInt": "int",
        "bool": "bool",
        "float": "float",
    }
    | {
        "int": "int",
        "str": "str",
        "Dimname": "str",
        "DimVector": "Sequence[int]",
        "GraphModule": "Any",
    }
)
"""The hints that are the same for all operators.

For ``complex`` Python's type system takes any number.
"""


@dataclass(frozen=True)
class Words:
    """The Python words for base types and for defaults."""

    types: Mapping[str, str]
    """The hint of each base type."""
    defaults: Mapping[str, str]
    """The expressions of defaults that are words, but for True, False and None."""


TORCH = Words(
    types=MappingProxyType(
        dict(PLAIN)
        | {
            "Device": "torch.device | str | int",
            "Generator": "torch.Generator",
            "Layout": "torch.layout",
            "MemoryFormat": "torch.memory_format",
            "QScheme": "torch.qscheme",
            "ScalarType": "torch.dtype",
            "Storage": "torch.UntypedStorage",
            "Stream": "torch.Stream",
            "SymBool": "bool | torch.SymBool",
            "SymInt": "int | torch.SymInt",
            "Tensor": "torch.Tensor",
        }
    ),
    defaults=MappingProxyType(
        {
            word: f"torch.{word}"
            for word in ("channels_last", "contiguous_format", "double", "float", "int", "long")
        }
        # The number of Mean.
        | {"preserve_format": "torch.preserve_format", "strided": "torch.strided", "Mean": "1"}
    ),
)
"""The words for operators in ``torch.ops``."""

ANY = Words(
    types=PLAIN,
    defaults=MappingProxyType(
        {"Mean": "1"} | {word: f'"{word}"' for word in TORCH.defaults if word != "Mean"}
    ),
)
"""The words for any other operators: tensors, dtypes and devices are whatever their library
takes, and words are texts.
"""


_LIST = re.compile(r"(.+)\[(\d*)\]")
"""A list's type: that of its elements, and its size where it has one.

Then one element may stand for all of the list.
"""


def hint(type_: str, words: Words) -> str:
    """A type as a hint."""
    if type_.endswith("?"):
        found = hint(type_[:-1], words)
        return found if found == "Any" else f"{found} | None"
    if listed := _LIST.fullmatch(type_):
        element = hint(listed[1], words)
        return f"Sequence[{element}] | {element}" if listed[2] else f"Sequence[{element}]"
    return words.types.get(type_, "Any")


def return_hint(operator: Operator, words: Words) -> str:
    """The hint of the wrapper's result.

    A list is a list there, while an argument may be any sequence.
    """
    returns = [re.sub(r"^Sequence\[", "list[", hint(each, words)) for each in operator.returns]
    return f"tuple[{', '.join(returns)}]" if len(returns) > 1 else "".join(returns) or "None"


def default(argument: Argument, operator: Operator, words: Words) -> str:
    """A default as a Python expression that calls can't change: lists become tuples.

    A SchemaError if it is none.
    """
    text = argument.default or ""
    base = base_type(argument.type)
    if text in words.defaults and base not in ("str", "bool"):
        return words.defaults[text]
    is_number = base in ("float", "Scalar") and text.removeprefix("-") in ("inf", "nan")
    try:
        value = float(text) if is_number else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        problem = (
            f"the default {text!r} of {argument.name!r} can't be read; write a number, text, list,"
            " True, False or None"
        )
        raise SchemaError(operator.location, problem) from None
    listed = _LIST.fullmatch(argument.type.removesuffix("?"))
    if listed and listed[2] and value is not None and not isinstance(value, list):
        value = [value] * int(listed[2])
    return _literal(tuple(value) if isinstance(value, list) else value)


def _literal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        parts = ", ".join(map(_literal, value))
        return f"({parts},)" if len(value) == 1 else f"({parts})"
    return repr(value)
