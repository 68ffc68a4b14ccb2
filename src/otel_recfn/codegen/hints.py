"""Types and defaults of schemas in Python's words, as data: for operators of PyTorch, and for any others."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from otel_recfn.codegen.operators import Argument, Operator, Return, SchemaType
from otel_recfn.model.errors import SchemaError

PLAIN: Mapping[str, str] = MappingProxyType(
    {"DeviceIndex": "int", "Scalar": "complex", "SymBool": "bool", "SymInt": "int", "bool": "bool", "float": "float"}
    | {"int": "int", "str": "str", "Dimname": "str", "DimVector": "Sequence[int]", "GraphModule": "Any"}
)
"""The same for all operators. Where ``complex`` stands, Python's type system takes any number."""
VALUES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"DeviceIndex": (int,), "Dimname": (str,), "Scalar": (int, float, complex), "SymBool": (bool,), "SymInt": (int,)}
    | {"bool": (bool,), "float": (int, float), "int": (int,), "str": (str,)}
)
"""Of which types defaults are."""


@dataclass(frozen=True)
class Words:
    """How hints and defaults are written."""

    types: Mapping[str, str]
    """By base type."""
    defaults: Mapping[str, str]
    """By the words that schemas have as defaults, beside numbers, texts, lists, True, False and None."""


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
            "Mean": "1",  # at::Reduction::Mean
            "channels_last": "torch.channels_last",
            "contiguous_format": "torch.contiguous_format",
            "double": "torch.double",
            "float": "torch.float",
            "int": "torch.int",
            "long": "torch.long",
            "preserve_format": "torch.preserve_format",
            "strided": "torch.strided",
        }
    ),
)
"""Of operators in ``torch.ops``."""

ANY = Words(
    types=PLAIN,
    defaults=MappingProxyType({"Mean": "1"} | {word: f'"{word}"' for word in TORCH.defaults if word != "Mean"}),
)
"""Of any other operators: their tensors, dtypes and devices are whatever their library takes; words are texts."""


def hint(type_: SchemaType, words: Words) -> str:
    """A type as a hint."""
    if (inner := type_.optional) is not None:
        found = hint(inner, words)
        return found if found == "Any" else f"{found} | None"
    if (element := type_.element) is not None:
        found = f"Sequence[{hint(element, words)}]"
        # One number may stand for as many as the list has.
        return f"{found} | {hint(element, words)}" if type_.size is not None else found
    return words.types.get(type_.text, "Any")


def return_hints(operator: Operator, words: Words) -> list[str]:
    """What the wrapper returns; a list is one then, where an argument may be any sequence."""
    return [_returned(each, words) for each in operator.returns]


def _returned(declared: Return, words: Words) -> str:
    found = re.sub(r"^Sequence\[", "list[", hint(declared.type, words))
    return f'Annotated[{found}, "{declared.alias}"]' if declared.alias else found


def default(argument: Argument, operator: Operator, words: Words) -> str:
    """A default as a Python expression that can't be changed by calls: lists become tuples.

    Raises:
        SchemaError: it is none that is known.
    """
    text = argument.default or ""
    if text in words.defaults and argument.type.base not in ("str", "bool"):
        return words.defaults[text]
    try:
        value = _value(text, argument)
    except (SyntaxError, ValueError):
        message = (
            f"the default {text!r} of {argument.name!r} can't be read; write a number, a text, a list, True, False or None"
        )
        raise SchemaError(operator.location, message) from None
    if not _fits(value, argument.type):
        told = f"the default {text} of {argument.name!r} is not of its type, {argument.type.text}"
        raise SchemaError(operator.location, told)
    size = (argument.type.optional or argument.type).size
    if size is not None and value is not None and not isinstance(value, list):
        value = [value] * size  # one number stands for as many as the list has
    return _literal(tuple(value) if isinstance(value, list) else value)


def _value(text: str, argument: Argument) -> object:
    is_number = argument.type.base in ("float", "Scalar") and text.removeprefix("-") in ("inf", "nan")
    return float(text) if is_number else ast.literal_eval(text)


def _fits(value: object, type_: SchemaType) -> bool:
    """Whether a default is of its type, where Python has such types."""
    if type_.optional is not None:
        return value is None or _fits(value, type_.optional)
    if type_.element is not None and isinstance(value, list):
        return all(_fits(each, type_.element) for each in value)
    if type_.element is not None and type_.size is None:
        return False
    return isinstance(value, VALUES.get(type_.base, object))


def _literal(value: object) -> str:
    """As formatters write it."""
    if isinstance(value, str):
        text = repr(value) if value.count('"') > value.count("'") else json.dumps(value, ensure_ascii=False)
        return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        parts = ", ".join(map(_literal, value))
        return f"({parts},)" if len(value) == 1 else f"({parts})"
    return repr(value)
