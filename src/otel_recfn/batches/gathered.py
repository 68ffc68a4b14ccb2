"""Rows of several batches as one, in any order: their columns, gathered natively, and the tables that they index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.span_plan import Places
from otel_recfn.model.batch import COLUMN_TYPES, TEXT_COLUMNS, Batch
from otel_recfn.model.columns import CONTEXT_COLUMNS, TRACK_COLUMNS
from otel_recfn.model.empty_columns import empty_column, empty_in_all

Columns = dict[str, NDArray[Any]]
ColumnTypes = Mapping[str, np.dtype[Any]]
_OF_A_BATCH: ColumnTypes = {name: np.dtype(kind) for name, kind in COLUMN_TYPES.items()}


def gather(types: ColumnTypes, parts: Sequence[object], part: Places, row: Places) -> Columns:
    """These columns of rows, each of which is that row of that one of the parts. They are the parts' attributes."""
    raw: dict[str, Any] = _native.gather_rows(tuple(types), tuple(parts), part, row)
    return {name: np.frombuffer(raw[name], kind) for name, kind in types.items()}


def gathered(batches: Sequence[Batch], part: Places, row: Places) -> Batch:
    """A batch of these rows, with nothing announced. It has the batches' tables one after the other, without looking at them.

    Columns that the batches share, as there is nothing in them, aren't read.

    Args:
        batches: at least one.
        part, row: see ``gather``.
    """
    empty = empty_in_all(batches)
    types = {name: kind for name, kind in _OF_A_BATCH.items() if name not in empty}
    columns: dict[str, Any] = dict(gather(types, batches, part, row))
    for name, column in empty.items():
        columns[name] = empty_column(column.dtype, len(row), column.empty)
    tables: dict[str, Any] = {}
    for table, of_it in (("names", TEXT_COLUMNS), ("tracks", TRACK_COLUMNS), ("contexts", CONTEXT_COLUMNS)):
        of_batches = [getattr(batch, table) for batch in batches]
        tables[table] = of_batches[0]
        if all(one is of_batches[0] for one in of_batches):
            continue
        tables[table], begins = _joined(of_batches)
        for name in [name for name in of_it if name in types]:
            column = columns[name]
            columns[name] = np.where(column == 0, column, column + begins[part]) if table == "names" else column + begins[part]
    drained_ns = max(batch.drained_ns for batch in batches)
    return Batch(**columns, **tables, drained_ns=drained_ns)


def _joined(tables: Sequence[Sequence[Any]]) -> tuple[list[Any], NDArray[np.uint32]]:
    """All of them as one, and where each begins there."""
    joined: list[Any] = []
    begins = []
    for table in tables:
        begins.append(len(joined))
        joined.extend(table)
    return joined, np.array(begins, np.uint32)
