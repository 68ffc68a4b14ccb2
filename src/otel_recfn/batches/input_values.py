"""The inputs of an operator as torch.profiler's events have them, from the texts in a batch.

    dtypes             "float"         ──► the name of the type in C++
    concrete_inputs    "[1, 2]", "3"   ──► numbers and lists of numbers

A text that was too long to keep is no JSON, and has no values.
"""

from __future__ import annotations

import json
import sys
from ast import literal_eval
from contextlib import suppress
from functools import lru_cache
from typing import Any

MAX_VALUES = 1024
"""The number of distinct texts of concrete inputs whose values are remembered."""
IS_CLANG = sys.platform == "darwin"
"""Whether PyTorch's names of types are those of the other compiler."""
_TYPE_NAMES = {
    "uint8": "unsigned char",
    "int8": "signed char",
    "int16": "short" if IS_CLANG else "short int",
    "uint16": "unsigned short" if IS_CLANG else "short unsigned int",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long" if IS_CLANG else "long int",
    "uint64": "unsigned long long" if IS_CLANG else "long unsigned int",
    "float16": "c10::Half",
    "float32": "float",
    "float64": "double",
    "bfloat16": "c10::BFloat16",
    "complex32": "c10::complex<c10::Half>",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}
"""The C++ types of dtypes that have another name there than in ``c10``."""
_AS_THEY_ARE = ("", "bool", "Scalar", "...", "other")


def parsed_list(text: str) -> list[Any]:
    """The list in a text of JSON; empty if there is none, or if the text was too long to keep."""
    with suppress(ValueError):
        found = json.loads(text or "[]")
        return found if isinstance(found, list) else []
    return []


def type_name(dtype: str | list[str], value: Any) -> str:
    """The name that torch.profiler has for an input's type.

    Args:
        dtype: our name of it; of a list of tensors, a name for each.
        value: the input's value; None if it isn't known.
    """
    if isinstance(dtype, list):
        return "TensorList"
    if not dtype and isinstance(value, list):
        return "ScalarList"
    if dtype in _AS_THEY_ARE:
        return dtype
    return _TYPE_NAMES.get(dtype) or f"c10::{dtype.replace('float', 'Float')}"


def concrete_values(text: str) -> list[Any]:
    """The values of a row's concrete inputs, as lists of this event alone."""
    if not text:
        return []
    return [list(value) if isinstance(value, list) else value for value in _values(text)]


@lru_cache(MAX_VALUES)
def _values(text: str) -> tuple[Any, ...]:
    return tuple(map(_value, parsed_list(text)))


def _value(text: str) -> Any:
    """The number, or list of numbers, that an input's text stands for; None for an empty one."""
    if not text:
        return None
    with suppress(ValueError, SyntaxError):
        return literal_eval(text)
    with suppress(ValueError):
        return float(text)  # inf, nan
    with suppress(ValueError):
        return complex(text)  # inf-nanj
    return text
