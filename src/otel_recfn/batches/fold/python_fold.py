"""The Python twin of folding: many units, columns in and columns out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.fold.finished import DIGITS, FINISHED_TYPES, FinishedUnits, Ids, Places
from otel_recfn.batches.fold.folded import FoldedTree
from otel_recfn.batches.fold.protocol import MOST_WAITING, PlannedRanges
from otel_recfn.batches.fold.unit import Range, UnitFold
from otel_recfn.batches.number_sets import distinct


class PythonFold:
    """Open units, by number.

    Args:
        budget: how many ranges a unit keeps at most.
        min_duration_ns: shorter ranges are not kept.
        most_rows: a unit with so many rows has to be finished in part.
        most_waiting: so many rows of a unit, at least one, wait before they are compared.
    """

    def __init__(self, budget: int, min_duration_ns: int, most_rows: int, most_waiting: int = MOST_WAITING) -> None:
        self._budget, self._min_duration_ns, self._most_rows = budget, min_duration_ns, most_rows
        self._most_waiting = max(1, most_waiting)
        self._units: dict[int, UnitFold] = {}
        self._interrupted: dict[int, list[Range]] = {}
        """Units in the middle of a change, and the ranges of each that must not be missing, as they were before it."""

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

        Args:
            unit: the number of each one's unit.
            event_id, parent, name, start_ns, duration_ns: see ``Range``.
            flags: bits of EventFlag, and ``LINKABLE``.
            first_row: the number of the first row; that of each other one is one more than of the row before it.

        Raises:
            MemoryError: none was added, and of what the units had only what must not be missing is left.
        """
        self._begin_anew()
        self._interrupted, nothing = self._needed_of(distinct(unit).tolist()), self._interrupted
        added = self._add(unit, event_id, parent, name, start_ns, duration_ns, flags, first_row)
        self._interrupted = nothing
        return added

    def _add(
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
        columns = (event_id, parent, name, start_ns, duration_ns, flags)
        numbers = range(first_row, first_row + len(unit))
        rows = zip(unit.tolist(), *[column.tolist() for column in columns], numbers, strict=True)
        for done, (number, *row) in enumerate(rows, 1):
            one = self._units.get(number)
            if one is None:
                one = self._units[number] = self._new_unit()
            one.add(Range(*row))
            if one.rows >= self._most_rows:
                return done
        return len(unit)

    def add_planned(self, ranges: PlannedRanges, first_row: int) -> int:
        """Add the ranges of a plan, as ``add`` does; the first one has this number."""
        return self.add(*ranges.columns(), first_row)

    def kept(self) -> Places:
        """The numbers of the rows that may be kept yet, in ascending order."""
        self._begin_anew()
        return np.array(sorted([held.range.row for one in self._units.values() for held in one.held]), np.int64)

    def rows(self, units: Sequence[int]) -> list[int]:
        """How many rows came to each of these units, or since its last part."""
        self._begin_anew()
        return [self._units[number].rows if number in self._units else 0 for number in units]

    def finish(self, units: Sequence[int], budgets: Sequence[int], goes_on: Sequence[bool]) -> FinishedUnits:
        """What became of these units' rows; those that don't go on are forgotten.

        Args:
            units: their numbers, each once.
            budgets: how many spans each may have.
            goes_on: whether more will come to it.

        Raises:
            ValueError: a unit is named twice.
            MemoryError: of what the units had only what must not be missing is left.
        """
        if len(set(units)) < len(units):
            raise ValueError("a unit is named twice; finish it once at a time")
        self._begin_anew()
        self._interrupted, nothing = self._needed_of(units), self._interrupted
        done = self._finish(units, budgets, goes_on)
        self._interrupted = nothing
        return done

    def _needed_of(self, units: Sequence[int]) -> dict[int, list[Range]]:
        return {number: [*self._units[number].needed] if number in self._units else [] for number in units}

    def _begin_anew(self) -> None:
        """Units that were left in the middle of a change, with what must not be missing of them."""
        if not self._interrupted:
            return
        nothing, units = dict[int, list[Range]](), dict(self._units)
        for number, needed in self._interrupted.items():
            units[number] = one = self._new_unit()
            for each in needed:
                one.add(each)
        self._units, self._interrupted = units, nothing

    def _finish(self, units: Sequence[int], budgets: Sequence[int], goes_on: Sequence[bool]) -> FinishedUnits:
        columns = _Columns()
        for place, (number, budget, more) in enumerate(zip(units, budgets, goes_on, strict=True)):
            one = self._units.get(number) or self._new_unit()
            columns.add(place, one, budget)
            if not more:
                self._units.pop(number, None)
        return columns.sealed()

    def _new_unit(self) -> UnitFold:
        return UnitFold(self._budget, self._min_duration_ns, self._most_waiting)


class _Columns:
    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in FINISHED_TYPES}

    def add(self, place: int, unit: UnitFold, budget: int) -> None:
        kept, folded = unit.finish(budget)
        first = len(self._columns["kept"])
        for one in kept:
            self._append(
                kept=one.range.event_id,
                kept_row=one.range.row,
                kept_unit=place,
                kept_parent=one.parent,
                kept_self_ns=one.self_ns,
                kept_forced=one.forced,
            )
        self._add_tree(place, -1, folded)
        for holder, one in enumerate(kept, first):
            if one.folded is not None:
                self._add_tree(place, holder, one.folded)

    def _add_tree(self, unit: int, holder: int, tree: FoldedTree) -> None:
        places: dict[tuple[int, ...], int] = {(): -1}
        for path, node in tree.root.paths():
            places[path] = len(self._columns["path_unit"])
            digits, counts = node.counts(DIGITS)
            self._columns["counts"] += counts
            self._append(
                path_unit=unit,
                path_holder=holder,
                path_above=places[path[:-1]],
                path_name=path[-1],
                path_count=node.count,
                path_total_ns=node.total_ns,
                path_self_ns=node.self_ns,
                path_shortest_ns=node.shortest_ns,
                path_longest_ns=node.longest_ns,
                path_first_ns=node.first_ns,
                path_first_id=node.first_id,
                path_digits=digits,
                path_counts_end=len(self._columns["counts"]),
            )
        for event_id in tree.linkable:
            self._append(linkable=event_id, linkable_unit=unit, linkable_holder=holder)

    def _append(self, **row: Any) -> None:
        for name, value in row.items():
            self._columns[name].append(value)

    def sealed(self) -> FinishedUnits:
        return FinishedUnits(**{name: np.array(column, FINISHED_TYPES[name]) for name, column in self._columns.items()})
