"""The rows that wait for the end of their unit, as they came.

They are found by the numbers that they are given as they come. So a batch is held as it is, and what folding let go of it is
dropped now and then, for many rows at once. Rows of several batches are gathered natively, as one batch: with numpy each step
would let go of the GIL, and wait for it behind all threads that compute in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.merging import merged
from otel_recfn.batches.span_plan import Places
from otel_recfn.model.batch import TEXT_COLUMNS, Batch
from otel_recfn.model.columns import COLUMNS, CONTEXT_COLUMNS, TRACK_COLUMNS
from otel_recfn.model.empty_columns import empty_column

ROWS_TO_SPARE = 1 << 15
"""So many rows may be held in vain, some 5 MB, before they are looked through."""
MOST_BATCHES = 32
"""More are put together: each is searched when a unit is decided."""

_TABLES = (
    dict.fromkeys(TEXT_COLUMNS, "names") | dict.fromkeys(TRACK_COLUMNS, "tracks") | dict.fromkeys(CONTEXT_COLUMNS, "contexts")
)
_SHARED: dict[str, Any] = {one.name: empty_column(one.dtype, 0, one.empty).base for one in COLUMNS if one.seldom}
_GATHERED = tuple([(one.name, _SHARED.get(one.name), _TABLES.get(one.name)) for one in COLUMNS])
"""Each column's name, what batches share that have nothing there, and the table that it indexes."""


class _Held(NamedTuple):
    """Of one batch, or of several that were put together."""

    first: int
    """The number of the first one."""
    number: Places | None
    """In ascending order; None: one after the other from the first one on."""
    row: Places
    """Its place in the batch."""
    batch: Batch


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

    def add(self, batch: Batch, row: Places) -> None:
        """These rows of a batch. They have the numbers that follow those of the rows before, the first one 0."""
        first, self._numbers = self._numbers, self._numbers + len(row)
        if len(row):
            self._held.append(_Held(first, None, row, batch))
            self._rows += len(batch)

    def take(self, numbers: Places) -> Batch:
        """The rows with these numbers, which are needed, in this order, and no more texts than they have."""
        return gathered(self._held, numbers) if len(numbers) else self._nothing

    def make_room(self) -> None:
        """Drop what isn't needed, if it is much. Before the next rows come: by then many units of the last ones are decided."""
        if self._rows <= self._most and len(self._held) < MOST_BATCHES:
            return
        kept = self._kept()
        ends = np.searchsorted(kept, [*[held.first for held in self._held], self._numbers]).tolist()
        self._held = [held for held, first, end in zip(self._held, ends[:-1], ends[1:], strict=True) if first < end]
        rows = sum(len(held.batch) for held in self._held)
        if rows > ROWS_TO_SPARE or len(self._held) > MOST_BATCHES // 2:
            kept = kept[: ends[-1]]
            rows = len(kept)
            self._held = [_Held(int(kept[0]), kept, np.arange(rows), gathered(self._held, kept))]
        self._rows, self._most = rows, 2 * rows + ROWS_TO_SPARE


def gathered(held: Sequence[_Held], numbers: Places) -> Batch:
    """A batch of the rows with these numbers, at least one, with nothing announced; its names are those that they have.

    Raises:
        IndexError: one of them isn't held.
    """
    found, names, used = _native.gather_rows(_GATHERED, tuple(held), numbers)
    batches = [held[at].batch for at in used]
    columns: dict[str, Any] = {
        one.name: np.frombuffer(found[one.name], one.dtype)
        if one.name in found
        else empty_column(one.dtype, len(numbers), one.empty)
        for one in COLUMNS
    }
    tracks, contexts = _joined([batch.tracks for batch in batches]), _joined([batch.contexts for batch in batches])
    drained_ns = max([batch.drained_ns for batch in batches])
    return Batch(**columns, names=names, tracks=tracks, contexts=contexts, drained_ns=drained_ns)


def _joined(tables: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """As what indexes them expects it: one after the other, but for where all are the same."""
    if all(table is tables[0] for table in tables):
        return tables[0]
    return [entry for table in tables for entry in table]
