"""Rows in the order of their ends, where parents stand before children that ran on other threads; and rows without an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import COLUMN_TYPES, Batch
from otel_recfn.model.events import ORDINAL_BITS, EventFlag

_ORDINAL = np.uint64(ORDINAL_BITS)


def children_first(batch: Batch) -> Batch:
    """The batch with each row after those that ended before it.

    A drain reads one thread after the other. So a range may stand before one of another thread that lies in it.
    """
    crosses = (batch.parent != 0) & (batch.parent >> _ORDINAL != batch.event_id >> _ORDINAL)
    if not crosses.any() or batch.closed < len(batch):
        return batch
    order = np.argsort(batch.end_ns, kind="stable")
    columns: dict[str, Any] = {name: _ordered(getattr(batch, name), order) for name in COLUMN_TYPES}
    return replace(batch, **columns)


def _ordered(column: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """The column in this order. Most columns say the same in every row."""
    return column if (column == column[0]).all() else column.take(order)


def cut_off_as_shown(batch: Batch) -> Batch:
    """The batch, where ranges that were open when recording ended count as shown: only an end says whether they were."""
    is_partial = (batch.flags & EventFlag.PARTIAL) != 0
    if not is_partial.any():
        return batch
    return replace(batch, flags=batch.flags | np.where(is_partial, np.uint32(EventFlag.SHOWN), np.uint32(0)))
