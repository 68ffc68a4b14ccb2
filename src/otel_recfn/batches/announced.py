"""What a batch announces: made of its own rows, and read as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import COLUMN_TYPES, Batch, Opened, OpenedColumns
from otel_recfn.model.columns import ANNOUNCED_COLUMNS


def announced(batch: Batch, rows: NDArray[np.int64]) -> OpenedColumns:
    """``Batch.opened`` of these rows, which are top-level ranges, in the order of their begins."""
    rows = rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))]
    return OpenedColumns({name: getattr(batch, name)[rows] for name in ANNOUNCED_COLUMNS}, batch.names)


def announced_in(batch: Batch, contexts: frozenset[int]) -> Sequence[Opened]:
    """What the batch announces in these contexts. A program below a span of its own may announce every operator of it."""
    if not isinstance(batch.opened, OpenedColumns):
        return [one for one in batch.opened if one.context in contexts]
    column = batch.opened.columns["context"]
    counts = np.bincount(column)
    if not any(index < len(counts) and counts[index] for index in contexts):
        return ()
    return batch.opened.part(np.flatnonzero(is_in(column, list(contexts))))


def announced_column(batch: Batch, name: str) -> NDArray[Any]:
    """A column of what the batch announces, but for the names."""
    if isinstance(batch.opened, OpenedColumns):
        return batch.opened.columns[name]
    return np.array([getattr(one, name) for one in batch.opened], COLUMN_TYPES[name])
