"""Telling what was folded, to be read: the sums of each holder, and which paths have a span of their own."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.finished import SEVERAL, FinishedUnits, Places, Times
from models.folded_paths import wrapped

TOP_NAMES = 3
"""So many names are told of each span's folded ranges."""


class UnitsToTell(NamedTuple):
    """Columns by unit."""

    start_ns: Times
    end_ns: Times
    budget: Places
    """Spans for summaries."""
    least_told_ns: Times
    """Paths that took less have no summary, unless the unit would have no span."""
    tells_itself: NDArray[np.uint8]
    """1 where the span above it is ours, and takes what was folded directly below it."""


class Told(NamedTuple):
    """Three groups of columns: by sums, those of a unit's spans before its own; by name of some sums; by summary."""

    unit: Places
    span: Places
    """The number of the span that tells them: of kept ranges first, then of summaries; -1 for the span above the unit."""
    of_unit: Places
    """1 where they are of the whole unit, else they are of what was folded into the span."""
    ranges: Places
    duration_ns: Times
    top_end: Places
    """Where its names end in the next columns; they begin where those of the sums before it end."""
    top_name: NDArray[np.uint32]
    top_count: Places
    top_self_ns: Times
    path: Places
    parent: Places
    """The path whose summary it is a child of; -1: it is a child of its path's holder."""
    start_ns: Times
    end_ns: Times
    module: Places
    """The number of the path of the module that it is a call of, maybe with ``*`` for numbers; 0 where it isn't told."""


_TYPES: dict[str, Any] = {"top_name": np.uint32}
TOLD_TYPES: dict[str, Any] = {name: _TYPES.get(name, np.int64) for name in Told._fields}


def told_of_model(done: FinishedUnits, units: UnitsToTell) -> Told:
    """What is told of units that were finished together."""
    telling = _Teller(done, units)
    for unit in range(len(units.budget)):
        telling.tell(unit)
    return Told(
        **{name: np.array(column, TOLD_TYPES[name]) for name, column in telling.columns.items()}
    )


class _Teller:
    def __init__(self, done: FinishedUnits, units: UnitsToTell) -> None:
        self.done, self.units = done, units
        self.columns: dict[str, list[int]] = {name: [] for name in TOLD_TYPES}
        self.total, self.name, self.above = [
            getattr(done, f"path_{name}").tolist() for name in ("total_ns", "name", "above")
        ]
        self.shown: dict[int, tuple[int, int]] = {}
        """Paths that have a span, and from when to when it goes."""

    def tell(self, unit: int) -> None:
        paths = np.flatnonzero(self.done.path_unit == unit).tolist()
        kept = np.flatnonzero(self.done.kept_unit == unit).tolist()
        for path in self.with_summary(unit, paths, kept):
            self.summarize(path)
        folded = [path for path in paths if not self.is_as_good_as_kept(path)]
        sums = []
        for holder, group in groupby(folded, lambda path: int(self.done.path_holder[path])):
            own = list(group)
            sums.append(self.sum_of(own))
            if holder >= 0 or self.units.tells_itself[unit]:
                self.append_sums(unit, holder, False, sums[-1], _top(self.done, own, []))
        first = self.first_span(unit, paths, kept)
        if first is not None:
            whole = (
                sum(count for count, _ in sums),
                wrapped(sum(duration_ns for _, duration_ns in sums)),
            )
            self.append_sums(
                unit, first, True, whole, _top(self.done, paths, kept) if folded else []
            )

    def with_summary(self, unit: int, paths: list[int], kept: list[int]) -> list[int]:
        """The longest paths; what a path lies in stands before it."""
        long_ones = [
            one
            for one in paths
            if self.total[one] >= self.units.least_told_ns[unit] and self.may_be_shown(one)
        ]
        by_time = sorted(long_ones, key=self.total.__getitem__, reverse=True)
        chosen = by_time[: max(0, int(self.units.budget[unit]))]
        if not chosen and not kept and paths and not self.units.tells_itself[unit]:
            return [
                max([path for path in paths if self.above[path] < 0], key=self.total.__getitem__)
            ]
        return sorted(chosen)

    def sum_of(self, paths: list[int]) -> tuple[int, int]:
        """How many ranges, and how long those took that lie in none of the others."""
        outermost = [self.total[path] for path in paths if self.is_outermost(path)]
        return int(self.done.path_count[paths].sum()), wrapped(sum(outermost))

    def append_sums(
        self, unit: int, span: int, of_unit: bool, sums: tuple[int, int], top: list[Any]
    ) -> None:
        for name, (count, self_ns) in top:
            _append(self.columns, top_name=name, top_count=count, top_self_ns=self_ns)
        end = len(self.columns["top_name"])
        _append(
            self.columns,
            unit=unit,
            span=span,
            of_unit=of_unit,
            ranges=sums[0],
            duration_ns=sums[1],
            top_end=end,
        )

    def first_span(self, unit: int, paths: list[int], kept: list[int]) -> int | None:
        """The one that is seen first: the root of ours above the unit, or the longest one directly in it."""
        if self.units.tells_itself[unit]:
            return -1
        done = self.done
        length = {
            one: int(done.kept_end_ns[one] - done.kept_start_ns[one])
            for one in kept
            if not done.kept_parent[one]
        }
        for path in [path for path in paths if path in self.shown and done.path_holder[path] < 0]:
            place = self.columns["path"].index(path)
            if self.columns["parent"][place] < 0:
                length[len(done.kept) + place] = self.total[path]
        return max(length, key=length.__getitem__, default=None)

    def summarize(self, path: int) -> None:
        parent = self.above[path]
        while parent >= 0 and parent not in self.shown:
            parent = self.above[parent]
        begin, end = self.shown[parent] if parent >= 0 else _extent(self.done, self.units, path)
        duration = max(0, min(self.total[path], end - begin))
        start = min(max(int(self.done.path_first_ns[path]), begin), end - duration)
        self.shown[path] = start, start + duration
        told = {"start_ns": start, "end_ns": start + duration, "module": self.module_of(path)}
        _append(self.columns, path=path, parent=parent, **told)

    def is_as_good_as_kept(self, path: int) -> bool:
        """Whether it is a single range with a summary."""
        return (
            path in self.shown
            and self.done.path_count[path] == 1
            and self.done.path_first_row[path] >= 0
        )

    def module_of(self, path: int) -> int:
        """Where the calls of several classes differ in numbers alone, these tell nothing of a class."""
        done = self.done
        module, modules = int(done.path_module[path]), int(done.path_modules[path])
        if module != SEVERAL:
            return module
        holder, above = int(done.path_holder[path]), self.above[path]
        places = zip(done.path_unit, done.path_holder, done.path_above, strict=True)
        around = (done.path_unit[path], holder, above)
        beside = [at for at, place in enumerate(places) if place == around]
        classes = {(self.name[at], int(done.path_modules[at])) for at in beside}
        if above < 0:
            parent = done.kept[holder] if holder >= 0 else 0
            kept = np.flatnonzero(
                (done.kept_unit == done.path_unit[path]) & (done.kept_parent == parent)
            ).tolist()
            classes |= {(int(done.kept_name[one]), int(done.kept_modules[one])) for one in kept}
        is_shared = any(name != self.name[path] and one == modules for name, one in classes)
        return 0 if is_shared or modules == SEVERAL else modules

    def may_be_shown(self, path: int) -> bool:
        """Whether it may have a summary."""
        return not (self.is_of_node(path) or self.done.path_in_compilation[path])

    def is_of_node(self, path: int) -> bool:
        """The span of what is around it tells of it."""
        done, holder = self.done, int(self.done.path_holder[path])
        if self.above[path] >= 0 or holder < 0:
            return bool(done.path_is_node[path])
        name, shown = int(done.kept_name[holder]), int(done.kept_shown[holder])
        return name != shown and self.name[path] in (name, shown)

    def is_outermost(self, path: int) -> bool:
        """Whether it lies in nothing else that is summed up."""
        return self.above[path] < 0 or self.is_as_good_as_kept(self.above[path])


def _extent(done: FinishedUnits, units: UnitsToTell, path: int) -> tuple[int, int]:
    """Of the holder of a path."""
    holder, unit = int(done.path_holder[path]), int(done.path_unit[path])
    if holder >= 0:
        return int(done.kept_start_ns[holder]), int(done.kept_end_ns[holder])
    return int(units.start_ns[unit]), int(units.end_ns[unit])


def _top(
    done: FinishedUnits, paths: list[int], kept: list[int]
) -> list[tuple[int, tuple[int, int]]]:
    """The names with the most time in themselves, of several that which comes first: counts and times."""
    sums: dict[int, tuple[int, int]] = {}

    def add(name: int, count: int, self_ns: int) -> None:
        before = sums.get(name, (0, 0))
        sums[name] = before[0] + count, wrapped(before[1] + self_ns)

    for path in paths:
        shown = int(done.path_shown[path])  # what is around a backward node is a part of it
        add(
            shown,
            int(done.path_count[path]) if shown == done.path_name[path] else 0,
            int(done.path_self_ns[path]),
        )
    for one in kept:
        add(int(done.kept_shown[one]), 1, int(done.kept_self_ns[one]))
    whole = [(name, sum_of) for name, sum_of in sums.items() if sum_of[0]]
    return sorted(whole, key=lambda item: -item[1][1])[:TOP_NAMES]


def _append(columns: dict[str, list[int]], **row: int) -> None:
    for name, value in row.items():
        columns[name].append(value)
