"""Uses numpy's comparisons and arithmetic once, for the types that columns have.

At the first use for some types numpy registers what computes them. Where memory failed in the middle of that, ``==`` of two
columns was seen to raise TypeError from then on ("has already been registered"). So it is done when this is imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TYPES = (np.bool_, np.uint8, np.uint32, np.uint64, np.int64, np.float64)
FUNCTIONS: tuple[Any, ...] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.add, np.subtract, np.multiply, np.maximum, np.minimum),
    *(np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift, np.invert, np.negative),
    *(np.logical_and, np.logical_or, np.logical_not, np.add.reduce, np.maximum.reduce, np.minimum.reduce, np.any, np.all),
)


def use_once() -> None:
    """All of them, where numpy has them for these types."""
    for each in TYPES:
        column = np.ones(1, each)
        for function in FUNCTIONS:
            try:
                function(column) if getattr(function, "nin", 1) == 1 else function(column, column)
            except TypeError:  # numpy has none for that type
                pass


use_once()
