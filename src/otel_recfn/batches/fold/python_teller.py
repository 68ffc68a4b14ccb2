"""The Python twin of telling what was folded."""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.fold.finished import FinishedUnits, Places
from otel_recfn.batches.fold.folded import OTHER
from otel_recfn.batches.fold.told import TOLD_TYPES, TOP_NAMES, KeptExtents, Told, UnitsToTell
from otel_recfn.batches.fold.wrapping import wrapped


def tell_in_python(done: FinishedUnits, kept: KeptExtents, units: UnitsToTell) -> Told:
    """See ``Tells``."""
    return _Teller(done, kept, units).told()


class _Teller:
    def __init__(self, done: FinishedUnits, kept: KeptExtents, units: UnitsToTell) -> None:
        self._done, self._kept, self._units = done, kept, units
        self._columns: dict[str, list[int]] = {name: [] for name in TOLD_TYPES}
        self._shown: dict[int, tuple[int, int]] = {}
        """Paths that have a span, and from when to when it goes."""
        self._left = units.budget.tolist()

    def told(self) -> Told:
        for place, (first, last) in enumerate(_holders(self._done)):
            self._sum_up(first, last)
            longest = self._longest(first, last)
            unit = int(self._done.path_unit[first])
            if self._done.path_holder[first] < 0 and not self._units.tells_itself[unit]:
                self._summarize(longest, place)
                self._left[unit] -= 1
        chosen = self._chosen()
        self._shown |= dict.fromkeys(chosen, (0, 0))
        for path in chosen:
            self._summarize(path, -1)
        return Told(**{name: np.array(column, TOLD_TYPES[name]) for name, column in self._columns.items()})

    def _sum_up(self, first: int, last: int) -> None:
        done, top = self._done, self._top(first, last)
        outermost = done.path_above[first:last] < 0
        self._add(
            unit=int(done.path_unit[first]),
            holder=int(done.path_holder[first]),
            ranges=int(done.path_count[first:last].sum()),
            duration_ns=int(done.path_total_ns[first:last][outermost].sum()),
            top_end=len(self._columns["top_name"]) + len(top),
        )
        for name, (count, self_ns) in top:
            self._add(top_name=name, top_count=count, top_self_ns=self_ns)

    def _top(self, first: int, last: int) -> list[tuple[int, tuple[int, int]]]:
        """The names with the most time in themselves, of several that which comes first: counts and times."""
        sums: dict[int, tuple[int, int]] = {}
        for path in range(first, last):
            name = int(self._done.path_name[path])
            count, self_ns = sums.get(name, (0, 0))
            sums[name] = (count + int(self._done.path_count[path]), wrapped(self_ns + int(self._done.path_self_ns[path])))
        return sorted(sums.items(), key=_self_ns, reverse=True)[:TOP_NAMES]

    def _longest(self, first: int, last: int) -> int:
        """The path directly in it with the most time. What is told as other ranges only where there is nothing else."""
        done = self._done
        outermost = [path for path in range(first, last) if done.path_above[path] < 0]
        times = [-1 if done.path_name[path] == OTHER else int(done.path_total_ns[path]) for path in outermost]
        return outermost[times.index(max(times))]

    def _chosen(self) -> list[int]:
        """The paths that the budgets are left for, each after what it lies in."""
        left = self._left
        total = self._done.path_total_ns
        chosen = []
        for path in sorted(range(len(total)), key=[int(each) for each in total].__getitem__, reverse=True):
            unit = int(self._done.path_unit[path])
            if path not in self._shown and self._done.path_name[path] != OTHER and left[unit] > 0:
                left[unit] -= 1
                chosen.append(path)
        return sorted(chosen)

    def _summarize(self, path: int, sums: int) -> None:
        parent, (begin, end) = self._parent(path)
        duration = max(0, min(int(self._done.path_total_ns[path]), end - begin))
        start = min(max(int(self._done.path_first_ns[path]), begin), end - duration)
        self._shown[path] = (start, start + duration)
        self._add(path=path, parent=parent, start_ns=start, end_ns=start + duration, sums=sums)

    def _parent(self, path: int) -> tuple[int, tuple[int, int]]:
        """The path that it is a child of, -1 for the holder; from when to when that goes."""
        above = int(self._done.path_above[path])
        while above >= 0:
            if above in self._shown:
                return above, self._shown[above]
            above = int(self._done.path_above[above])
        holder, unit = int(self._done.path_holder[path]), int(self._done.path_unit[path])
        around = (self._kept, holder) if holder >= 0 else (self._units, unit)
        return -1, (int(around[0].start_ns[around[1]]), int(around[0].end_ns[around[1]]))

    def _add(self, **row: int) -> None:
        for name, value in row.items():
            self._columns[name].append(value)


def _holders(done: FinishedUnits) -> list[tuple[int, int]]:
    """Where the paths of each span that ranges were folded into begin and end."""
    if not len(done.path_unit):
        return []
    changes = (np.diff(done.path_unit) != 0) | (np.diff(done.path_holder) != 0)
    bounds: Places = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(changes) + 1]])
    return [*zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def _self_ns(one: tuple[int, tuple[int, int]]) -> int:
    return one[1][1]
