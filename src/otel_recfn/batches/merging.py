"""Rows of several batches as one.

They are copied natively: with numpy each step would release the GIL, and wait for it behind all
threads that compute in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.model.batch import NO_CONTEXT, Batch, Track, empty_column, make_columns
from otel_recfn.model.columns import COLUMNS, CONTEXT_COLUMNS, TEXT_COLUMNS, TRACK_COLUMNS

_TABLES = (
    dict.fromkeys(TEXT_COLUMNS, "names")
    | dict.fromkeys(TRACK_COLUMNS, "tracks")
    | dict.fromkeys(CONTEXT_COLUMNS, "contexts")
)
_SHARED: dict[str, Any] = {
    one.name: empty_column(one.dtype, 0, one.empty).base for one in COLUMNS if one.is_optional
}
DESCRIPTIONS = tuple([(one.name, _SHARED.get(one.name), _TABLES.get(one.name)) for one in COLUMNS])
"""Each column's name, what stands for it in batches that have nothing there, and the table that
it indexes.
"""


NOTHING = Batch(**make_columns({}, 0), names=[""], tracks=[])
"""A batch without a row, which many units share: one of its own would be most of the size of a
unit without spans.
"""


def batch_from_fields(fields: Mapping[str, Any], rows: int, each_value_once: bool = False) -> Batch:
    """The batch of gathered rows, without announced ranges; NOTHING if there are none.

    ``fields`` are columns and tables; columns that are left out are empty. The names are only those
    of the rows. ``each_value_once``: the other tables have only entries of the rows as well, and no
    two that are equal.
    """
    if not rows:
        return NOTHING
    tables = {name: fields[name] for name in ("names", "tracks", "contexts", "drained_ns")}
    batch = Batch(**make_columns(fields, rows), **tables)
    return _with_each_value_once(batch) if each_value_once else batch


def merged(batches: Sequence[Batch]) -> Batch:
    """One batch of all rows, whose tables have each value once.

    A thread has the last name that was known.
    """
    fields = _native.gather_batches(DESCRIPTIONS, tuple(batches))
    return batch_from_fields(fields, sum(map(len, batches)), each_value_once=True)


def _with_each_value_once(batch: Batch) -> Batch:
    """A batch of the same rows, without the table entries that no row uses."""
    changed: dict[str, Any] = {}
    tables: Sequence[tuple[str, Sequence[str], Sequence[Any]]] = (
        ("names", TEXT_COLUMNS, [""]),
        ("tracks", TRACK_COLUMNS, []),
        ("contexts", CONTEXT_COLUMNS, [NO_CONTEXT]),
    )
    for table, columns, first in tables:
        values = getattr(batch, table)
        used = np.zeros(len(values), np.bool_)
        indices = np.zeros(len(values), np.uint32)
        for name in columns:
            np.put(used, getattr(batch, name), True)
        entries = {value: value for value in first}
        index_by_value = {value: position for position, value in enumerate(first)}
        for index in np.flatnonzero(used).tolist():
            value = values[index]
            key = value.number if isinstance(value, Track) else value
            indices[index] = index_by_value.setdefault(key, len(index_by_value))
            if key not in entries or (isinstance(value, Track) and value.name):
                entries[key] = value
        changed[table] = list(entries.values())
        changed |= {
            name: np.take(indices, getattr(batch, name))
            for name in columns
            if getattr(batch, name).any()
        }
    return batch.take(slice(None), **changed)
