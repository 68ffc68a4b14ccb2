"""The rows that wait for the end of their unit, as they came.

They are found by the numbers that they are given as they come. So a batch is held as it is, and what folding let go of it is
dropped now and then, for many rows at once. Rows of several batches are gathered natively, as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.merging import merged
from otel_recfn.batches.number_sets import distinct
from otel_recfn.batches.span_plan import Places
from otel_recfn.model.batch import COLUMN_TYPES, TEXT_COLUMNS, Batch
from otel_recfn.model.columns import CONTEXT_COLUMNS, TRACK_COLUMNS
from otel_recfn.model.empty_columns import empty_column, empty_in_all

ROWS_TO_SPARE = 1 << 15
"""So many rows may be held in vain, some 5 MB, before they are looked through."""
MOST_BATCHES = 32
"""More are put together: each is searched when a unit is decided."""


class _Held(NamedTuple):
    """Of one batch, or of several that were put together."""

    first: int
    """The number of the first one."""
    end: int
    """After the number of the last one."""
    number: Places | None
    """In ascending order; None: all from the first to the last one."""
    row: Places
    """Its place in the batch."""
    batch: Batch

    def find(self, numbers: Places) -> Places:
        """Where in the batch these stand, which are there."""
        place = numbers - self.first if self.number is None else np.searchsorted(self.number, numbers)
        return self.row[place]


class WaitingRows:
    """Rows of several batches.

    Args:
        kept: the numbers of the rows that are needed at the moment, in ascending order.
    """

    def __init__(self, kept: Callable[[], Places]) -> None:
        self._kept = kept
        self._held: list[_Held] = []
        self._numbers = self._rows = 0
        self._most = ROWS_TO_SPARE
        self._nothing = merged([])

    def __len__(self) -> int:
        return self._rows

    def make_room(self) -> None:
        """Drop what isn't needed, if it is much. Before the next rows come: by then many units of the last ones are decided."""
        if self._rows > self._most or len(self._held) >= MOST_BATCHES:
            self._compact()

    def add(self, batch: Batch, row: Places) -> None:
        """These rows of a batch. They have the numbers that follow those of the rows before, the first one 0."""
        first, self._numbers = self._numbers, self._numbers + len(row)
        if len(row):
            self._held.append(_Held(first, self._numbers, None, row, batch))
            self._rows += len(batch)

    def take(self, numbers: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, which are needed, in this order, and no more texts than they have."""
        if not len(numbers):
            return self._nothing
        first = np.array([held.first for held in self._held], np.int64)
        part = np.searchsorted(first, numbers, "right") - 1
        used = np.flatnonzero(np.bincount(part))
        held, part = [self._held[at] for at in used.tolist()], np.searchsorted(used, part).astype(np.int64, copy=False)
        row = np.empty(len(numbers), np.int64)
        for at, one in enumerate(held):
            here = np.flatnonzero(part == at)
            row[here] = one.find(numbers[here])
        return gathered([one.batch for one in held], part, row, own_names=True)

    def _compact(self) -> None:
        kept = self._kept()
        self._held = [held for held in self._held if _has_any(held, kept)]
        self._rows = sum(len(held.batch) for held in self._held)
        if self._rows > ROWS_TO_SPARE or len(self._held) > MOST_BATCHES // 2:
            held = _together([_part(held, kept) for held in self._held])
            self._held, self._rows = [held] if held is not None else [], len(held.row) if held is not None else 0
        self._most = 2 * self._rows + ROWS_TO_SPARE


def _has_any(held: _Held, numbers: Places) -> bool:
    """Whether one of these numbers, which ascend, may be of it."""
    first, last = np.searchsorted(numbers, (held.first, held.end)).tolist()
    return bool(first < last)


def _part(held: _Held, numbers: Places) -> _Held:
    """What is held of these numbers, which ascend."""
    first, last = np.searchsorted(numbers, (held.first, held.end)).tolist()
    own = numbers[first:last]
    place = held.find(own)
    return _Held(held.first, held.end, own, np.arange(len(own)), gathered([held.batch], np.zeros_like(place), place))


def _together(parts: Sequence[_Held]) -> _Held | None:
    if not parts:
        return None
    number = np.concatenate([part.number for part in parts if part.number is not None])
    batch = parts[0].batch if len(parts) == 1 else merged([part.batch for part in parts], keep_names=True)
    return _Held(int(number[0]), int(number[-1]) + 1, number, np.arange(len(number)), batch)


Columns = dict[str, NDArray[Any]]
ColumnTypes = Mapping[str, np.dtype[Any]]
_OF_A_BATCH: ColumnTypes = {name: np.dtype(kind) for name, kind in COLUMN_TYPES.items()}


def gather(types: ColumnTypes, parts: Sequence[object], part: Places, row: Places) -> Columns:
    """These columns of rows, each of which is that row of that one of the parts. They are the parts' attributes."""
    raw: dict[str, Any] = _native.gather_rows(tuple(types), tuple(parts), part, row)
    return {name: np.frombuffer(raw[name], kind) for name, kind in types.items()}


def gathered(batches: Sequence[Batch], part: Places, row: Places, *, own_names: bool = False) -> Batch:
    """A batch of these rows, with nothing announced. It has the batches' tables one after the other, without looking at them.

    Columns that the batches share, as there is nothing in them, aren't read.

    Args:
        batches: at least one.
        part, row: see ``gather``.
        own_names: have a table of the names that the rows have alone.
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
    if own_names:
        tables["names"] = _own_names(columns, [name for name in TEXT_COLUMNS if name in types], tables["names"])
    drained_ns = max(batch.drained_ns for batch in batches)
    return Batch(**columns, **tables, drained_ns=drained_ns)


def _own_names(columns: Columns, of_texts: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that these columns have, which index them from now on; the empty one stays the first."""
    used = distinct(np.concatenate([np.zeros(1, np.uint32), *[columns[name] for name in of_texts]]))
    for name in of_texts:
        columns[name] = np.searchsorted(used, columns[name]).astype(np.uint32)
    return [names[index] for index in used.tolist()]


def _joined(tables: Sequence[Sequence[Any]]) -> tuple[list[Any], NDArray[np.uint32]]:
    """All of them as one, and where each begins there."""
    joined: list[Any] = []
    begins = []
    for table in tables:
        begins.append(len(joined))
        joined.extend(table)
    return joined, np.array(begins, np.uint32)
