"""What FLOPs are counted from: sizes, numbers and words among inputs (source: ``saveExtraArgs`` of PyTorch)."""

from __future__ import annotations

import json
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]

_FIRST, _SECOND = "mat1_size", "mat2_size"
SIZES: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::add": (("mat_size", 0),),
    "aten::mul": (("mat_size", 0),),
    "aten::mm": ((_FIRST, 0), (_SECOND, 1)),
    "aten::bmm": ((_FIRST, 0), (_SECOND, 1)),
    "aten::addmm": ((_FIRST, 1), (_SECOND, 2)),
    "aten::baddbmm": ((_FIRST, 1), (_SECOND, 2)),
    "aten::conv2d": (("input_size", 0), ("weight_size", 1)),
}
"""By operator: PyTorch's names, and which inputs they are the sizes of. Where one of these is no tensor, nothing is told."""
DIMENSIONS: dict[str, tuple[int, int]] = {"aten::conv2d": (1, 4)}
"""Of which input so many are asked for: nothing is told of others."""
OTHERS: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::conv2d": (("stride", 3), ("padding", 4), ("dilation", 5), ("groups", 6)),
}
"""The same for inputs that are numbers, lists of numbers, or words."""
NO_TENSORS = ("", "Scalar", "...")
"""What stands in the place of a dtype."""
KEPT = 1024
"""Distinct texts of inputs that are kept as what they say."""


class Inputs(NamedTuple):
    """The columns of a row that tell of its inputs, the first one parsed."""

    shapes: tuple[Shape, ...]
    dtypes: str
    concrete_inputs: str
    words: str


def extra_args(operator: str, inputs: Inputs) -> dict[str, Any]:
    """Of an operator that is counted; nothing of others, or of inputs that it can't be counted of."""
    wanted = SIZES.get(operator, ())
    dtypes = _dtypes(inputs.dtypes)
    if any(not (place < len(inputs.shapes) and place < len(dtypes) and _is_tensors(dtypes[place])) for _, place in wanted):
        return {}
    if operator in DIMENSIONS:
        place, dimensions = DIMENSIONS[operator]
        if len(inputs.shapes[place]) != dimensions:
            return {}
    sizes: dict[str, Any] = {name: list(inputs.shapes[place]) for name, place in wanted}
    others = OTHERS.get(operator)
    if others is None:
        return sizes
    values = _values(inputs.concrete_inputs, inputs.words)
    return sizes | {name: copy(values[place]) for name, place in others if place in values}


def _is_tensors(dtype: Any) -> bool:
    return isinstance(dtype, str) and dtype not in NO_TENSORS


@lru_cache(KEPT)
def _dtypes(text: str) -> tuple[Any, ...]:
    dtypes = json.loads(text) if text else ()
    return tuple(dtypes)


@lru_cache(KEPT)
def _values(concrete_inputs: str, words: str) -> dict[int, Any]:
    """By place: whole numbers, lists of numbers, and words."""
    texts = _parsed(concrete_inputs)
    numbers = {place: _parsed(text) for place, text in enumerate(texts)} if isinstance(texts, list) else {}
    told = json.loads(words) if words else {}
    return {place: value for place, value in numbers.items() if value is not None} | {int(place): told[place] for place in told}


def _parsed(text: Any) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):  # no number, or a producer's own text
        return None
    return value if type(value) in (int, list) else None
