"""Columns that say nothing, which batches share: most drains have nothing in a dozen. Who copies rows need not read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.column_fields import ColumnArrays
from otel_recfn.model.columns import COLUMNS, Column

SHARED_ROWS = 1 << 18
"""Of longer batches each has its own empty columns."""
_SELDOM = [column for column in COLUMNS if column.seldom]


def empty_column(dtype: Any, count: int, empty: int = 0) -> NDArray[Any]:
    """So many rows that say that there is nothing; nobody may write to it.

    Args:
        dtype: of the column.
        count: of rows.
        empty: what says so.
    """
    return shared_column(dtype, empty)[:count] if count <= SHARED_ROWS else _filled(count, dtype, empty)


@cache
def shared_column(dtype: Any, empty: int = 0) -> NDArray[Any]:
    """The ``base`` of shared empty columns. Filling one for each batch would cost a tenth of the drain."""
    values = _filled(SHARED_ROWS, dtype, empty)
    values.flags.writeable = False
    return values


def empty_in_all(batches: Sequence[ColumnArrays]) -> dict[str, Column]:
    """The columns that all of these batches share, since none has anything there."""
    found = {}
    for column in _SELDOM:
        dtype: Any = column.dtype
        shared = shared_column(dtype, column.empty)
        if batches and all(getattr(batch, column.name).base is shared for batch in batches):
            found[column.name] = column
    return found


def _filled(count: int, dtype: type[np.generic], value: int) -> NDArray[Any]:
    """As ``np.full``, but memory that is zero costs nothing until it is written."""
    return np.full(count, value, dtype) if value else np.zeros(count, dtype)
