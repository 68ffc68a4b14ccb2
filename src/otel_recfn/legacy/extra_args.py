"""What floating point operations are counted from, as far as shapes say it (source: ``torch::profiler::impl::saveExtraArgs``).

Of a convolution the strides, paddings, dilations and groups are missing: only its FLOPs are recorded, which have them in.
"""

from __future__ import annotations

from typing import TypeAlias

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


def extra_args(operator: str, shapes: tuple[Shape, ...]) -> dict[str, list[int]]:
    """The sizes of an operator that is counted; nothing of others, or where there are too few shapes."""
    wanted = SIZES.get(operator, ())
    if any(place >= len(shapes) for _, place in wanted):
        return {}
    return {name: list(shapes[place]) for name, place in wanted}
