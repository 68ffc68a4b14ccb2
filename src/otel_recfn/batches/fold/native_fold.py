"""The native twin of folding: ``_native.Fold``, its columns as numpy sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.fold.finished import FINISHED_TYPES, FinishedUnits, Places


class NativeFold:
    """Open units, by number. See ``PythonFold``; ``add`` and ``finish`` work without the GIL.

    Args:
        budget: how many ranges a unit keeps at most.
        min_duration_ns: shorter ranges are not kept.
        most_rows: a unit with so many rows has to be finished in part.
    """

    def __init__(self, budget: int, min_duration_ns: int, most_rows: int) -> None:
        self._fold = _native.Fold(budget, min_duration_ns, most_rows)
        self.add = self._fold.add
        self.rows = self._fold.rows

    def kept(self) -> Places:
        """The numbers of the rows that are kept now, in ascending order."""
        kept: Any = self._fold.kept()
        return np.frombuffer(kept, np.int64)

    def finish(self, units: Sequence[int], budgets: Sequence[int], goes_on: Sequence[bool]) -> FinishedUnits:
        """What became of these units' rows; those that don't go on are forgotten."""
        told = _columns(self._fold.finish(units, budgets, goes_on))
        self._fold.taken()
        return told


def _columns(raw: Mapping[str, Any]) -> FinishedUnits:
    return FinishedUnits(**{name: np.frombuffer(raw[name], dtype) for name, dtype in FINISHED_TYPES.items()})
