"""Telling what was folded, to be read: the sums of each holder, and which paths have a span of their own."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.finished import SEVERAL, FinishedUnits, Places, Times
from models.folding import OTHER, wrapped

TOP_NAMES = 3
"""So many names are told of each span's folded ranges."""


class UnitsToTell(NamedTuple):
    """Columns by unit."""

    start_ns: Times
    end_ns: Times
    budget: Places
    """Spans for summaries; a unit that doesn't tell itself has one of them in any case."""
    least_told_ns: Times
    """Paths that took less have no summary, but for that one."""
    tells_itself: NDArray[np.uint8]
    """1 where the span above it takes what was folded directly below it."""


class Told(NamedTuple):
    """Three groups of columns: by holder, in the order of their paths; by name of a holder; by summary."""

    unit: Places
    holder: Places
    """As ``FinishedUnits.path_holder``."""
    ranges: Places
    """How many ranges were folded into it."""
    duration_ns: Times
    top_end: Places
    """Where its names end in the next columns; they begin where those of the holder before it end."""
    top_name: NDArray[np.uint32]
    top_count: Places
    top_self_ns: Times
    path: Places
    parent: Places
    """The path whose summary it is a child of; -1: it is a child of its path's holder."""
    start_ns: Times
    end_ns: Times
    sums: Places
    """The holder whose sums it tells; -1 for none. Those that tell some come first."""
    module: Places
    """The number of the path of the module that it is a call of, maybe with ``*`` for numbers; 0 where it isn't told."""


_TYPES: dict[str, Any] = {"top_name": np.uint32}
TOLD_TYPES: dict[str, Any] = {name: _TYPES.get(name, np.int64) for name in Told._fields}


def told_of_model(done: FinishedUnits, units: UnitsToTell) -> Told:
    """What is told of units that were finished together."""
    telling, further = _Teller(done, units), list[tuple[int, int]]()
    for unit in range(len(units.budget)):
        further += telling.tell(unit)
    for path, sums in further:
        telling.summarize(path, sums)
    return Told(**{name: np.array(column, TOLD_TYPES[name]) for name, column in telling.columns.items()})


class _Teller:
    def __init__(self, done: FinishedUnits, units: UnitsToTell) -> None:
        self.done, self.units = done, units
        self.columns: dict[str, list[int]] = {name: [] for name in TOLD_TYPES}
        self.total, self.name, self.above = [getattr(done, f"path_{name}").tolist() for name in ("total_ns", "name", "above")]
        self.shown: dict[int, tuple[int, int]] = {}
        """Paths that have a span, and from when to when it goes."""

    def tell(self, unit: int) -> list[tuple[int, int]]:
        """Of one unit; the summaries that tell no sums are returned."""
        done, left = self.done, int(self.units.budget[unit])
        of_unit = np.flatnonzero(done.path_unit == unit).tolist()
        first_sums, tops, first = len(self.columns["unit"]), list[Any](), None
        for holder, group in groupby(of_unit, lambda path: int(done.path_holder[path])):
            paths = list(group)
            self.sum_up(unit, holder, paths)
            tops.append(_top(done, paths, []))
            if holder < 0 and not self.units.tells_itself[unit]:  # other ranges only where there is nothing else
                outermost = [path for path in paths if self.above[path] < 0]
                first = max(outermost, key=lambda path: -1 if self.name[path] == OTHER else self.total[path])
                self.summarize(first, first_sums)
                left -= 1
        if tops:
            kept = np.flatnonzero(done.kept_unit == unit).tolist()
            place = self.first_span(unit, first_sums, kept, None if first is None else self.total[first])
            tops += [[]] * (len(self.columns["unit"]) - first_sums - len(tops))
            tops[place - first_sums] = _top(done, of_unit, kept)
            for place, top in enumerate(tops, first_sums):
                self.columns["top_end"][place] = len(self.columns["top_name"]) + len(top)
                for name, (count, self_ns) in top:
                    _append(self.columns, top_name=name, top_count=count, top_self_ns=self_ns)
        chosen = []
        for path in sorted(of_unit, key=self.total.__getitem__, reverse=True):
            is_long = self.total[path] >= self.units.least_told_ns[unit]
            if path not in self.shown and is_long and left > 0 and self.may_be_shown(path):
                left -= 1
                chosen.append((path, -1))
        return sorted(chosen)  # what a path lies in stands before it

    def sum_up(self, unit: int, holder: int, paths: list[int]) -> None:
        outermost = [path for path in paths if self.is_outermost(path)]
        count, duration_ns = int(self.done.path_count[paths].sum()), int(self.done.path_total_ns[outermost].sum())
        _append(self.columns, unit=unit, holder=holder, ranges=count, duration_ns=duration_ns, top_end=0)

    def first_span(self, unit: int, first_sums: int, kept: list[int], of_summary: int | None) -> int:
        """The sums of the span that is seen first: of the root of ours above the unit, or of the longest one directly in it."""
        has_own = self.columns["holder"][first_sums] < 0
        if has_own and self.units.tells_itself[unit]:
            return first_sums
        done = self.done
        duration = {one: int(done.kept_end_ns[one] - done.kept_start_ns[one]) for one in kept if not done.kept_parent[one]}
        longest = max(duration, key=duration.__getitem__, default=None)
        if longest is None or (of_summary is not None and duration[longest] <= of_summary):
            return first_sums
        if longest not in self.columns["holder"][first_sums:]:
            _append(self.columns, unit=unit, holder=longest, ranges=0, duration_ns=0, top_end=0)
        return first_sums + self.columns["holder"][first_sums:].index(longest)

    def summarize(self, path: int, sums: int) -> None:
        parent = self.above[path]
        while parent >= 0 and parent not in self.shown:
            parent = self.above[parent]
        begin, end = self.shown[parent] if parent >= 0 else _extent(self.done, self.units, path)
        duration = max(0, min(self.total[path], end - begin))
        start = min(max(int(self.done.path_first_ns[path]), begin), end - duration)
        self.shown[path] = start, start + duration
        if self.done.path_count[path] == 1 and self.done.path_first_row[path] >= 0:  # it is as good as kept
            unit, holder = int(self.done.path_unit[path]), int(self.done.path_holder[path])
            place = list(zip(self.columns["unit"], self.columns["holder"], strict=True)).index((unit, holder))
            self.columns["ranges"][place] -= 1
        told = {"start_ns": start, "end_ns": start + duration, "sums": sums, "module": self.module_of(path)}
        _append(self.columns, path=path, parent=parent, **told)

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
            kept = np.flatnonzero((done.kept_unit == done.path_unit[path]) & (done.kept_parent == parent)).tolist()
            classes |= {(int(done.kept_name[one]), int(done.kept_modules[one])) for one in kept}
        is_shared = any(name != self.name[path] and one == modules for name, one in classes)
        return 0 if is_shared or modules == SEVERAL else modules

    def may_be_shown(self, path: int) -> bool:
        """Whether it may have a summary."""
        return not (self.is_other(path) or self.is_of_node(path) or self.done.path_in_compilation[path])

    def is_other(self, path: int) -> bool:
        """A part of what no path was left for."""
        return self.name[path] == OTHER or (self.above[path] >= 0 and self.is_other(self.above[path]))

    def is_of_node(self, path: int) -> bool:
        """The span of what is around it tells of it."""
        done, holder = self.done, int(self.done.path_holder[path])
        if self.above[path] >= 0 or holder < 0:
            return bool(done.path_is_node[path])
        name, shown = int(done.kept_name[holder]), int(done.kept_shown[holder])
        return name != shown and self.name[path] in (name, shown)

    def is_outermost(self, path: int) -> bool:
        """What no path was left for lies directly in the holder where its time is counted."""
        above = self.above[path]
        return above < 0 or (self.above[above] < 0 and self.name[above] == OTHER)


def _extent(done: FinishedUnits, units: UnitsToTell, path: int) -> tuple[int, int]:
    """Of the holder of a path."""
    holder, unit = int(done.path_holder[path]), int(done.path_unit[path])
    if holder >= 0:
        return int(done.kept_start_ns[holder]), int(done.kept_end_ns[holder])
    return int(units.start_ns[unit]), int(units.end_ns[unit])


def _top(done: FinishedUnits, paths: list[int], kept: list[int]) -> list[tuple[int, tuple[int, int]]]:
    """The names with the most time in themselves, of several that which comes first, and others last: counts and times."""
    sums: dict[int, tuple[int, int]] = {}

    def add(name: int, count: int, self_ns: int) -> None:
        before = sums.get(name, (0, 0))
        sums[name] = before[0] + count, wrapped(before[1] + self_ns)

    for path in paths:
        shown = int(done.path_shown[path])  # what is around a backward node is a part of it
        add(shown, int(done.path_count[path]) if shown == done.path_name[path] else 0, int(done.path_self_ns[path]))
    for one in kept:
        add(int(done.kept_shown[one]), 1, int(done.kept_self_ns[one]))
    whole = [(name, sum_of) for name, sum_of in sums.items() if sum_of[0]]
    return sorted(whole, key=lambda item: (item[0] == OTHER, -item[1][1]))[:TOP_NAMES]


def _append(columns: dict[str, list[int]], **row: int) -> None:
    for name, value in row.items():
        columns[name].append(value)
