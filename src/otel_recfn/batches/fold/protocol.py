"""The contract of folding, which both twins keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.fold.finished import FinishedUnits, Ids, Places

MOST_WAITING = 1024
"""So many ranges of a unit wait before they are compared, unless somebody asks for another number."""


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
