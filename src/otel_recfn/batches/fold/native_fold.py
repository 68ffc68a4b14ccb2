"""The native twin of folding: ``_native.Fold``, its columns as numpy sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.fold.finished import FINISHED_TYPES, FinishedUnits, Places
from otel_recfn.batches.fold.protocol import MOST_WAITING


class NativeFold:
    """Open units, by number. See ``PythonFold``. Of many rows, ``add`` and ``finish`` work without the GIL.

    Args:
        budget: how many ranges a unit keeps at most.
        min_duration_ns: shorter ranges are not kept.
        most_rows: a unit with so many rows has to be finished in part.
        most_waiting: so many rows of a unit, at least one, wait before they are compared.
    """

    def __init__(self, budget: int, min_duration_ns: int, most_rows: int, most_waiting: int = MOST_WAITING) -> None:
        self._fold = _native.Fold(budget, min_duration_ns, most_rows, most_waiting)
        self.add, self.add_planned = self._fold.add, self._fold.add_planned
        self.rows = self._fold.rows

    def kept(self) -> Places:
        """The numbers of the rows that may be kept yet, in ascending order."""
        kept: Any = self._fold.kept()
        return np.frombuffer(kept, np.int64)

    def finish(self, units: Sequence[int], budgets: Sequence[int], goes_on: Sequence[bool]) -> FinishedUnits:
        """What became of these units' rows; those that don't go on are forgotten."""
        told = _columns(self._fold.finish(units, budgets, goes_on))
        self._fold.taken()
        return told


def _columns(raw: Mapping[str, Any]) -> FinishedUnits:
    tables = {name: np.frombuffer(raw[name], kind) for name, kind in _ROWS.items()}
    return FinishedUnits(**{column: tables[table][column] for table, columns in _TABLES.items() for column in columns})


_TABLES = {
    "kept": ("kept", "kept_row", "kept_unit", "kept_parent", "kept_self_ns", "kept_forced"),
    "paths": (
        *("path_unit", "path_holder", "path_above", "path_count", "path_total_ns", "path_self_ns", "path_name"),
        *("path_digits", "path_shortest_ns", "path_longest_ns", "path_first_ns", "path_first_id", "path_counts_end"),
    ),
    "counts": ("counts",),
    "linkable": ("linkable", "linkable_unit", "linkable_holder"),
}
"""The rows that `_native.Fold` tells, as C++ lays them out."""
_ROWS = {table: np.dtype([(name, FINISHED_TYPES[name]) for name in names], align=True) for table, names in _TABLES.items()}
