"""What a drain gives, as numpy sees it: columns without a copy, announced ranges as columns until they're read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otel_recfn.model.batch import OpenedColumns
from otel_recfn.model.columns import ANNOUNCED_COLUMNS, COLUMN_TYPES, COLUMNS
from otel_recfn.model.empty_columns import empty_column


def columns(rows: Mapping[str, Any], opened: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """An array per column of a Batch, and what it announces, over the memory that the drain filled.

    Args:
        rows: what is in the columns; one that is seldom filled, and wasn't, is left out.
        opened: what is announced.
        names: what its names index.
    """
    count = memoryview(rows["kind"]).nbytes
    found: dict[str, Any] = {
        column.name: np.frombuffer(rows[column.name], dtype=column.dtype)
        if column.name in rows
        else empty_column(column.dtype, count, column.empty)
        for column in COLUMNS
    }
    announced = {name: np.frombuffer(opened[name], dtype=COLUMN_TYPES[name]) for name in ANNOUNCED_COLUMNS}
    return found | {"opened": OpenedColumns(announced, names)}
