"""The contract of folding, which both twins keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.fold.finished import FinishedUnits, Ids, Places
from otel_recfn.batches.fold.unit import LINKABLE
from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag
from otel_recfn.model.scope import RecordScope

MOST_WAITING = 1024
"""So many ranges of a unit wait before they are compared, unless somebody asks for another number."""


Column = NDArray[Any]
Columns = tuple[Column, Column, Column, Column, Column, Column, Column]


class PlannedRanges(NamedTuple):
    """Ranges that a plan of spans has, as they stand in its batch."""

    batch: Batch
    row: Places
    parent: Ids
    above: Places
    """These as in a plan."""
    unit: NDArray[np.uint32]
    """The number of the unit, by ``above``."""
    name: NDArray[np.uint32]
    """The number of the name, by its number in the batch."""
    shown: Ids
    """The event ids, in ascending order, of ranges that rank above all."""

    def columns(self) -> Columns:
        """What ``Fold.add`` is told of them."""
        batch, row = self.batch, self.row
        event_id, start_ns = batch.event_id[row], batch.start_ns[row]
        linkable = (batch.sequence_nr[row] >= 0) & (batch.scope[row] != RecordScope.BACKWARD_FUNCTION)
        flags = batch.flags[row] | np.where(linkable, np.uint32(LINKABLE), np.uint32(0))
        flags[is_in(event_id, self.shown)] |= np.uint32(EventFlag.SHOWN)
        unit, name = np.take(self.unit, self.above), np.take(self.name, np.take(batch.name, row))
        return unit, event_id, self.parent, name, start_ns, np.maximum(batch.end_ns[row] - start_ns, 0), flags


class Fold(Protocol):
    """Open units, by number, for one thread at a time."""

    def add(
        self,
        unit: NDArray[np.uint32],
        event_id: Ids,
        parent: Ids,
        name: NDArray[np.uint32],
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
        flags: NDArray[np.uint32],
        first_row: int,
    ) -> int:
        """Add ranges that have ended, up to one with which its unit is full. How many were added.

        The native twin also ends before a row for which there is no memory, and raises MemoryError where that is the first: it
        has nothing of that row.

        Args:
            unit: the number of each one's unit.
            event_id, parent, name, start_ns, duration_ns: see ``Range``.
            flags: bits of EventFlag, and ``LINKABLE``.
            first_row: the number of the first row; that of each other one is one more than of the row before it.
        """

    def add_planned(self, ranges: PlannedRanges, first_row: int) -> int:
        """Add the ranges of a plan, as ``add`` does; the first one has this number.

        Raises:
            IndexError: one indexes nothing.
        """

    def kept(self) -> Places:
        """The numbers of the rows that may be kept yet, in ascending order."""

    def rows(self, units: Sequence[int]) -> list[int]:
        """How many rows came to each of these units, or since its last part."""

    def finish(self, units: Sequence[int], budgets: Sequence[int], goes_on: Sequence[bool]) -> FinishedUnits:
        """What became of these units' rows; those that don't go on are forgotten.

        The native twin, where it finds no memory, keeps what it has, so that it can be asked again.

        Args:
            units: their numbers, each once.
            budgets: how many spans each may have.
            goes_on: whether more will come to it.

        Raises:
            ValueError: a unit is named twice.
        """
