"""The arguments that FLOPs are counted from: sizes and numbers among an operator's inputs (source:
``saveExtraArgs`` of PyTorch).
"""

from __future__ import annotations

import json
from copy import copy
from functools import lru_cache
from typing import Any

_FIRST = "mat1_size"
_SECOND = "mat2_size"
CONV = "aten::conv2d"
SIZES: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::add": (("mat_size", 0),),
    "aten::mul": (("mat_size", 0),),
    "aten::mm": ((_FIRST, 0), (_SECOND, 1)),
    "aten::bmm": ((_FIRST, 0), (_SECOND, 1)),
    "aten::addmm": ((_FIRST, 1), (_SECOND, 2)),
    "aten::baddbmm": ((_FIRST, 1), (_SECOND, 2)),
    CONV: (("input_size", 0), ("weight_size", 1)),
}
"""PyTorch's names of sizes by operator, and the inputs that have them.

If one of these is not a tensor, there are none.
"""
CONV_ARGUMENTS = (("stride", 3), ("padding", 4), ("dilation", 5), ("groups", 6))
"""PyTorch's names of the inputs that are numbers, or lists of numbers."""
CONV_DIMENSIONS = 4
"""The number of dimensions of the weight; with another number there are no sizes."""
NO_TENSORS = ("", "Scalar", "...")
"""Texts in place of a dtype."""
CACHE_SIZE = 1024
"""The number of distinct texts of inputs whose meanings are kept."""


def extra_args(
    operator: str, shapes: tuple[tuple[int, ...], ...], dtypes: str, concrete_inputs: str
) -> dict[str, Any]:
    """The arguments of a counted operator, from its row's columns; empty if it can't be counted
    from them.
    """
    input_dtypes = _dtypes(dtypes)
    for _, position in SIZES[operator]:
        dtype = input_dtypes[position] if position < min(len(shapes), len(input_dtypes)) else ""
        if not isinstance(dtype, str) or dtype in NO_TENSORS:
            return {}
    sizes: dict[str, Any] = {name: list(shapes[position]) for name, position in SIZES[operator]}
    if operator != CONV:
        return sizes
    if len(sizes["weight_size"]) != CONV_DIMENSIONS:
        return {}
    values = _values(concrete_inputs)
    return sizes | {
        name: copy(values[position]) for name, position in CONV_ARGUMENTS if position in values
    }


@lru_cache(CACHE_SIZE)
def _dtypes(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text)) if text else ()


@lru_cache(CACHE_SIZE)
def _values(concrete_inputs: str) -> dict[int, Any]:
    """The whole numbers and lists of numbers, by place."""
    texts = _parse_text(concrete_inputs)
    if not isinstance(texts, list):
        return {}
    numbers = {position: _parse_text(text) for position, text in enumerate(texts)}
    return {position: value for position, value in numbers.items() if value is not None}


def _parse_text(text: Any) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):  # no number, or a producer's own text
        return None
    return value if type(value) in (int, list) else None
