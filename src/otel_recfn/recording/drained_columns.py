"""What a drain gives, as numpy sees it: columns without a copy, announced ranges as columns until they're read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otel_recfn.model.announced import OpenedColumns
from otel_recfn.model.columns import ANNOUNCED_COLUMNS, COLUMN_TYPES, COLUMNS
from otel_recfn.model.empty_columns import empty_column


def columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An array per column of a Batch, over the memory that the drain filled; it leaves out what is seldom filled and wasn't."""
    count = memoryview(raw["kind"]).nbytes
    return {
        column.name: np.frombuffer(raw[column.name], dtype=column.dtype)
        if column.name in raw
        else empty_column(column.dtype, count, column.empty)
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
