"""Telling what was folded, to be read: the sums of each holder, and which paths have a span of their own."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.finished import FinishedUnits, Places, Times
from models.folding import OTHER, wrapped

TOP_NAMES = 3
"""So many names are told of each span's folded ranges."""


class KeptExtents(NamedTuple):
    """When the kept ranges began and ended: columns."""

    start_ns: Times
    end_ns: Times


class UnitsToTell(NamedTuple):
    """Columns by unit."""

    start_ns: Times
    end_ns: Times
    budget: Places
    """Spans for summaries; a unit that doesn't tell itself has one of them in any case."""
    least_ns: Times
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


_TYPES: dict[str, Any] = {"top_name": np.uint32}
TOLD_TYPES: dict[str, Any] = {name: _TYPES.get(name, np.int64) for name in Told._fields}


def told_of_model(done: FinishedUnits, kept: KeptExtents, units: UnitsToTell) -> Told:
    """What is told of units that were finished together."""
    columns: dict[str, list[int]] = {name: [] for name in TOLD_TYPES}
    total, name_of, above_of = [getattr(done, f"path_{name}").tolist() for name in ("total_ns", "name", "above")]
    left = units.budget.tolist()
    shown: dict[int, tuple[int, int]] = {}
    """Paths that have a span, and from when to when it goes."""

    def summarize(path: int, sums: int) -> None:
        parent = above_of[path]
        while parent >= 0 and parent not in shown:
            parent = above_of[parent]
        begin, end = shown[parent] if parent >= 0 else _extent(done, kept, units, path)
        duration = max(0, min(total[path], end - begin))
        start = min(max(int(done.path_first_ns[path]), begin), end - duration)
        shown[path] = start, start + duration
        _append(columns, path=path, parent=parent, start_ns=start, end_ns=start + duration, sums=sums)

    holders = groupby(range(len(total)), lambda path: (int(done.path_unit[path]), int(done.path_holder[path])))
    for place, ((unit, holder), group) in enumerate(holders):
        paths = list(group)
        outermost = [path for path in paths if above_of[path] < 0]
        top = _top(done, paths)
        _append(
            columns,
            unit=unit,
            holder=holder,
            ranges=int(done.path_count[paths].sum()),
            duration_ns=int(done.path_total_ns[outermost].sum()),
            top_end=len(columns["top_name"]) + len(top),
        )
        for name, (count, self_ns) in top:
            _append(columns, top_name=name, top_count=count, top_self_ns=self_ns)
        if holder < 0 and not units.tells_itself[unit]:  # other ranges only where there is nothing else
            summarize(max(outermost, key=lambda path: -1 if name_of[path] == OTHER else total[path]), place)
            left[unit] -= 1

    chosen = []
    for path in sorted(range(len(total)), key=total.__getitem__, reverse=True):
        unit = int(done.path_unit[path])
        is_long = total[path] >= units.least_ns[unit]
        has_span = name_of[path] != OTHER and not done.path_in_compilation[path]
        if path not in shown and has_span and is_long and left[unit] > 0:
            left[unit] -= 1
            chosen.append(path)
    for path in sorted(chosen):  # what a path lies in stands before it
        summarize(path, -1)
    return Told(**{name: np.array(column, TOLD_TYPES[name]) for name, column in columns.items()})


def _extent(done: FinishedUnits, kept: KeptExtents, units: UnitsToTell, path: int) -> tuple[int, int]:
    """Of the holder of a path."""
    holder, unit = int(done.path_holder[path]), int(done.path_unit[path])
    around: Any = (kept, holder) if holder >= 0 else (units, unit)
    return int(around[0].start_ns[around[1]]), int(around[0].end_ns[around[1]])


def _top(done: FinishedUnits, paths: list[int]) -> list[tuple[int, tuple[int, int]]]:
    """The names with the most time in themselves, of several that which comes first: counts and times."""
    sums: dict[int, tuple[int, int]] = {}
    for path in paths:
        count, self_ns = sums.get(int(done.path_name[path]), (0, 0))
        own = wrapped(self_ns + int(done.path_self_ns[path]))
        sums[int(done.path_name[path])] = count + int(done.path_count[path]), own
    return sorted(sums.items(), key=lambda item: item[1][1], reverse=True)[:TOP_NAMES]


def _append(columns: dict[str, list[int]], **row: int) -> None:
    for name, value in row.items():
        columns[name].append(value)
