"""Rows of several batches as one: merged, or waiting for a decision.

A batch is held as it is, and its rows are copied natively when they are asked for: with numpy each step would let go of the
GIL, and wait for it behind all threads that compute in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.number_sets import Places
from otel_recfn.model.batch import NO_CONTEXT, Batch, Track, columns_of, empty_column
from otel_recfn.model.columns import COLUMNS, CONTEXT_COLUMNS, TEXT_COLUMNS, TRACK_COLUMNS

ROWS_TO_SPARE = 1 << 15
"""The rows that may be held without need, some 5 MB, before they are looked through."""
MOST_BATCHES = 32
"""The batches that are held apart; more are merged, since each is searched when a unit is decided."""

_TABLES = (
    dict.fromkeys(TEXT_COLUMNS, "names")
    | dict.fromkeys(TRACK_COLUMNS, "tracks")
    | dict.fromkeys(CONTEXT_COLUMNS, "contexts")
)
_SHARED: dict[str, Any] = {
    one.name: empty_column(one.dtype, 0, one.empty).base for one in COLUMNS if one.seldom
}
_GATHERED = tuple([(one.name, _SHARED.get(one.name), _TABLES.get(one.name)) for one in COLUMNS])
"""Each column's name, what stands for it in batches that have nothing there, and the table that it indexes."""


NOTHING = Batch(**columns_of({}, 0), names=[""], tracks=[])
"""A batch without a row, which many units share: one of its own would be most of the size of a unit without spans."""


class _HeldRows(NamedTuple):
    """The rows of one batch, or of several that were merged."""

    number: Places
    """The numbers of the rows, at least one, ascending."""
    row: Places
    """The places of the rows in the batch."""
    batch: Batch


def _gathered(held: Sequence[_HeldRows], numbers: Places, **columns: Any) -> Batch:
    """A batch of the rows with these numbers, or NOTHING, without top-level ranges; its names are only those of the rows.

    Raises:
        IndexError: one of them isn't held.
    """
    if not len(numbers):
        return NOTHING
    found, names, used = _native.gather_rows(_GATHERED, tuple(held), numbers)
    batches = [held[at].batch for at in used]
    tracks = _one_after_the_other([batch.tracks for batch in batches])
    contexts = _one_after_the_other([batch.contexts for batch in batches])
    drained_ns = max([batch.drained_ns for batch in batches])
    filled = columns_of(found, len(numbers)) | columns
    return Batch(**filled, names=names, tracks=tracks, contexts=contexts, drained_ns=drained_ns)


def _one_after_the_other(tables: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The tables one after the other, as their indexes expect it; the table itself if all are the same."""
    if all(table is tables[0] for table in tables):
        return tables[0]
    return [entry for table in tables for entry in table]


def merged(batches: Sequence[Batch]) -> Batch:
    """One batch of all rows, whose tables have each value once. A thread has the last name that was known."""
    held, rows = [], 0
    for batch in batches:
        if len(batch):
            held.append(_HeldRows(np.arange(rows, rows + len(batch)), np.arange(len(batch)), batch))
            rows += len(batch)
    return _with_each_value_once(_gathered(held, np.arange(rows)))


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
        used, places = np.zeros(len(values), np.bool_), np.zeros(len(values), np.uint32)
        for name in columns:
            used[getattr(batch, name)] = True
        entries = {value: value for value in first}
        place_of = {value: place for place, value in enumerate(first)}
        for index in np.flatnonzero(used).tolist():
            value = values[index]
            key = value.number if isinstance(value, Track) else value
            places[index] = place_of.setdefault(key, len(place_of))
            if key not in entries or (isinstance(value, Track) and value.name):
                entries[key] = value
        changed[table] = list(entries.values())
        changed |= {
            name: np.take(places, getattr(batch, name))
            for name in columns
            if getattr(batch, name).any()
        }
    return batch.take(slice(None), **changed)


class WaitingRows:
    """Rows of several batches, which are numbered as they come and found by number.

    What isn't needed any more is dropped now and then, for many rows at once.

    Args:
        kept: the numbers of the rows that are needed at the moment, in ascending order.
    """

    def __init__(self, kept: Callable[[], Places]) -> None:
        self._kept = kept
        self._held: list[_HeldRows] = []
        self._numbers = self.rows = 0
        self._most = ROWS_TO_SPARE

    def add(self, batch: Batch, row: Places) -> None:
        """Add rows of a batch. Their numbers follow those of the rows before, from 0 on."""
        if self.rows > self._most or len(self._held) >= MOST_BATCHES:
            self._make_room()
        first, self._numbers = self._numbers, self._numbers + len(row)
        if len(row):
            self._held.append(_HeldRows(np.arange(first, self._numbers), row, batch))
            self.rows += len(batch)

    def take(self, numbers: Places, **columns: Any) -> Batch:
        """The rows with these numbers, all needed, in this order, with these columns, and no more texts than they have."""
        return _gathered(self._held, numbers, **columns)

    def _make_room(self) -> None:
        """Drop the rows that aren't needed."""
        kept = self._kept()
        ends = np.searchsorted(
            kept, [*[held.number[0] for held in self._held], self._numbers]
        ).tolist()
        self._held = [
            held
            for held, first, end in zip(self._held, ends[:-1], ends[1:], strict=True)
            if first < end
        ]
        rows = sum(len(held.batch) for held in self._held)
        if rows > ROWS_TO_SPARE or len(self._held) > MOST_BATCHES // 2:
            kept = kept[: ends[-1]]
            rows = len(kept)
            together = _with_each_value_once(_gathered(self._held, kept))
            self._held = [_HeldRows(kept, np.arange(rows), together)]
        self.rows, self._most = rows, 2 * rows + ROWS_TO_SPARE
