"""What the native drain gives, as numpy sees it: columns without a copy, announced ranges as columns until they're read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.announced import OpenedColumns
from otel_recfn.model.columns import ANNOUNCED_COLUMNS, COLUMN_TYPES, COLUMNS, Column

SHARED_ROWS = 1 << 16
"""Of longer batches each has its own empty columns."""


def columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An array per column of a Batch, over the memory that the drain filled; it leaves out what is seldom filled and wasn't."""
    count = memoryview(raw["kind"]).nbytes
    return {
        column.name: np.frombuffer(raw[column.name], dtype=column.dtype) if column.name in raw else _empty(column, count)
        for column in COLUMNS
    }


def announced(raw: Mapping[str, Any], names: Sequence[str]) -> OpenedColumns:
    """What a Batch announces, over the same memory.

    Args:
        raw: what the drain filled.
        names: what its names index.
    """
    types = {name: COLUMN_TYPES[name] for name in ANNOUNCED_COLUMNS}
    return OpenedColumns({name: np.frombuffer(raw[name], dtype=dtype) for name, dtype in types.items()}, names)


def _empty(column: Column, count: int) -> NDArray[Any]:
    dtype = np.dtype(column.dtype)
    return _shared_empty(dtype, column.empty)[:count] if count <= SHARED_ROWS else _filled(count, dtype, column.empty)


@cache
def _shared_empty(dtype: np.dtype[Any], empty: int) -> NDArray[Any]:
    """Most drains have nothing in a dozen columns, and filling these for each would cost a tenth of the drain."""
    values = _filled(SHARED_ROWS, dtype, empty)
    values.flags.writeable = False
    return values


def _filled(count: int, dtype: np.dtype[Any], value: int) -> NDArray[Any]:
    """As ``np.full``, but memory that is zero costs nothing until it is written."""
    return np.full(count, value, dtype) if value else np.zeros(count, dtype)
