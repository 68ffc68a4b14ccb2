"""What floating point operations are counted from: sizes and numbers among inputs (source: ``saveExtraArgs`` of PyTorch).

A convolution's padding that is a word ("same") is missing: recorded inputs have numbers alone.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeAlias

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
"""By operator: PyTorch's names, and which inputs they are the sizes of."""
NUMBERS: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::conv2d": (("stride", 3), ("padding", 4), ("dilation", 5), ("groups", 6)),
}
"""The same for inputs that are numbers, or lists of numbers."""
KEPT = 1024
"""Distinct texts of inputs whose numbers are kept."""


def extra_args(operator: str, shapes: tuple[Shape, ...], concrete_inputs: str) -> dict[str, Any]:
    """Of an operator that is counted; nothing of others, or where there are too few inputs.

    Args:
        operator: its name.
        shapes: of its inputs.
        concrete_inputs: the column of that name.
    """
    wanted = SIZES.get(operator, ())
    if any(place >= len(shapes) for _, place in wanted):
        return {}
    sizes: dict[str, Any] = {name: list(shapes[place]) for name, place in wanted}
    numbers = NUMBERS.get(operator)
    if numbers is None:
        return sizes
    values = _values(concrete_inputs)
    return sizes | {name: values[place] for name, place in numbers if place < len(values) and values[place] is not None}


@lru_cache(KEPT)
def _values(concrete_inputs: str) -> tuple[Any, ...]:
    """Each input that is a whole number or a list of numbers; None for others."""
    texts = _parsed(concrete_inputs)
    return tuple([_parsed(text) for text in texts]) if isinstance(texts, list) else ()


def _parsed(text: Any) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):  # no number, or a producer's own text
        return None
    return value if type(value) in (int, list) else None
