"""Folds the ranges of many units, columns in and columns out: ``_native.Fold``, its columns as numpy sees them.

A unit's ranges wait until there are enough of them, or it ends; then they are compared with each other and with those that were
kept before. So a unit that ends soon, as most do, is decided once, when it is known how many spans it may have.

A range comes when it has ended, so what lies in it came before. It ranks by its duration, and of equal ones the one that began
first ranks higher; but higher than all that lies in it, so that who is kept has all that is around it. The others are folded
into the nearest kept one around them.

Ranges that failed, and what they lie in, rank above those that didn't: as many as the fold's budget has are kept, whatever the
budget of their unit is. What was shown to the program ranks above all and is always kept.

Asynchronous ranges may end after what they lie in: they, and what comes after its parent, lie directly in the unit. So does,
where a unit is finished in parts, what lies in a range that comes with a later part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.fold.finished import FINISHED_TYPES, FinishedUnits, Ids, Places
from otel_recfn.model.batch import Batch

MOST_WAITING = 1024
"""So many ranges of a unit wait before they are compared, unless somebody asks for another number."""


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


class Fold:
    """Open units, by number, for one thread at a time. Of many rows, ``add_planned`` and ``finish`` work without the GIL.

    Where one of these finds no memory, it raises MemoryError, and what was added is lost.

    Args:
        budget: how many ranges a unit keeps at most.
        min_duration_ns: of every unit, as `least_ns` in ``finish``.
        most_waiting: so many rows of a unit, at least one, wait before they are compared.
    """

    def __init__(self, budget: int, min_duration_ns: int, most_waiting: int = MOST_WAITING) -> None:
        self._fold = _native.Fold(budget, min_duration_ns, most_waiting)

    def add_planned(self, ranges: PlannedRanges, first_row: int) -> None:
        """Add ranges that have ended.

        Args:
            ranges: what is added.
            first_row: the number of the first row; that of each other one is one more than of the row before it.

        Raises:
            IndexError: one indexes nothing.
        """
        self._fold.add_planned(ranges, first_row)

    def kept(self) -> Places:
        """The numbers of the rows that may be kept yet, in ascending order."""
        kept: Any = self._fold.kept()
        return np.frombuffer(kept, np.int64)

    def rows(self, units: Sequence[int]) -> list[int]:
        """How many rows came to each of these units, or since its last part."""
        return self._fold.rows(units)

    def finish(
        self, units: Sequence[int], budgets: Sequence[int], least_ns: Sequence[int], goes_on: Sequence[bool]
    ) -> FinishedUnits:
        """What became of these units' rows; those that don't go on are forgotten.

        Args:
            units: their numbers, each once.
            budgets: how many spans each may have.
            least_ns: shorter ranges of each are folded, unless they failed or were shown, or a kept range lies in them.
            goes_on: whether more will come to it.

        Raises:
            ValueError: a unit is named twice.
        """
        raw: Mapping[str, Any] = self._fold.finish(units, budgets, least_ns, goes_on)
        tables = {name: np.frombuffer(raw[name], kind) for name, kind in _ROWS.items()}
        return FinishedUnits(**{column: tables[table][column] for table, columns in _TABLES.items() for column in columns})


_TABLES = {
    "kept": ("kept", "kept_row", "kept_unit", "kept_parent", "kept_self_ns"),
    "paths": (
        *("path_unit", "path_holder", "path_above", "path_count", "path_total_ns", "path_self_ns", "path_name"),
        *("path_digits", "path_shortest_ns", "path_longest_ns", "path_first_ns", "path_first_id", "path_counts_end"),
    ),
    "counts": ("counts",),
    "linkable": ("linkable", "linkable_unit", "linkable_holder"),
}
"""The rows that `_native.Fold` tells, as C++ lays them out."""
_ROWS = {table: np.dtype([(name, FINISHED_TYPES[name]) for name in names], align=True) for table, names in _TABLES.items()}
