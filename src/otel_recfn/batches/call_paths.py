"""The paths of calls: what ran in what, how often, and for how long; read, and printed as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.averages import (
    TextColumn,
    render,
    share_text,
    time_text,
    wait_text,
    waits_mostly,
)
from otel_recfn.batches.number_sets import Places, places_in

Amounts = NDArray[np.int64]
NO_TIME = np.iinfo(np.int64).max


class Paths(NamedTuple):
    """The distinct paths of a forest, parents before their children."""

    above: Places
    """The parent of each path; -1 for the outermost."""
    label: Places
    """The last part of each path, as a number."""
    of_row: Places
    """The path of each row."""


def call_paths(above: Places, label: Places) -> Paths:
    """The distinct paths of a forest.

    Args:
        above: of each row, the row that it lies in; -1 at the top.
        label: of each row, what it is called, as a number.
    """
    of_row = np.full(len(above), -1, np.int64)
    path_above: list[Places] = [np.zeros(0, np.int64)]
    path_label: list[Places] = [np.zeros(0, np.int64)]
    by_above = np.argsort(above, kind="stable")
    sorted_above = above[by_above]
    count, level = 0, by_above[: np.searchsorted(sorted_above, 0)]
    while len(level):
        around = np.where(above[level] >= 0, np.take(of_row, above[level]), -1)
        order = np.lexsort((label[level], around))
        rows = level[order]
        changes = (np.diff(around[order]) != 0) | (np.diff(label[rows]) != 0)
        first = np.concatenate([np.ones(1, np.bool_), changes])
        of_row[rows] = count + np.cumsum(first) - 1
        path_above.append(around[order][first])
        path_label.append(label[rows][first])
        count += int(first.sum())
        begin = np.searchsorted(sorted_above, level)  # of the rows directly below these
        lengths = np.searchsorted(sorted_above, level, side="right") - begin
        level = by_above[places_in(begin[lengths > 0], lengths[lengths > 0])]
    return Paths(np.concatenate(path_above), np.concatenate(path_label), of_row)


def longest_paths(above: Places, candidates: Iterable[int], most: int) -> set[int]:
    """The first of these paths that fit, with what they lie in, into so many."""
    found: set[int] = set()
    parents = above.tolist()
    for path in candidates:
        around = []
        while path >= 0 and path not in found:
            around.append(path)
            path = parents[path]
        if len(found) + len(around) <= most:
            found.update(around)
        if len(found) == most:
            break
    return found


class Ranges(NamedTuple):
    """The ranges of a batch, as columns of equal length."""

    rows: Places
    above: Places
    """The range around each, as a place in these columns; -1 at the top."""
    durations: Amounts
    self_ns: Amounts
    wait_ns: Amounts


@dataclass(frozen=True)
class PathSums:
    """Sums by path, as columns with an entry for each path. Times are in nanoseconds.

    Attributes:
        count: how many ranges.
        total_ns: from begin to end, summed.
        self_ns: the same without direct children.
        shortest_ns: NO_TIME if there is no range.
        longest_ns: 0 if there is none.
        wait_ns: the part of ``total_ns`` that threads waited in the ranges, as far as it is known.
        backward_ns: the part of ``total_ns`` that backward passes took for the path's module.
    """

    count: Amounts
    total_ns: Amounts
    self_ns: Amounts
    shortest_ns: Amounts
    longest_ns: Amounts
    wait_ns: Amounts
    backward_ns: Amounts


def sums_of_ranges(
    path: Places,
    paths: int,
    ranges: Ranges,
    durations: Amounts | None = None,
    counted: NDArray[np.bool_] | None = None,
) -> PathSums:
    """The sums of ranges by path, maybe with other ``durations`` than theirs.

    ``counted`` are the path's own ranges; of others it has the time for themselves alone. None: all.
    """
    own, waited = np.zeros(paths, np.int64), np.zeros(paths, np.int64)
    durations, wait_ns = ranges.durations if durations is None else durations, ranges.wait_ns
    np.add.at(own, path, ranges.self_ns)
    if counted is not None:
        path, durations, wait_ns = path[counted], durations[counted], wait_ns[counted]
    np.add.at(waited, path, wait_ns)
    total, shortest, longest = (
        np.zeros(paths, np.int64),
        np.full(paths, NO_TIME, np.int64),
        np.zeros(paths, np.int64),
    )
    np.add.at(total, path, durations)
    np.minimum.at(shortest, path, durations)
    np.maximum.at(longest, path, durations)
    return PathSums(
        np.bincount(path, minlength=paths),
        total,
        own,
        shortest,
        longest,
        waited,
        np.zeros(paths, np.int64),
    )


@dataclass(frozen=True)
class CallPath:
    """The sums of all ranges of one name at one place in the tree.

    Attributes:
        path: names from the outermost range to these.
        count: how many ranges; 0 if it only groups others, as a thread does.
        cpu_time_total: microseconds from begin to end, summed; of a group, its members'.
        self_cpu_time_total: the same without direct children that ran on the same thread.
        cpu_time_min: microseconds of the shortest one; 0 if there is none.
        cpu_time_max: of the longest one.
        wait_time_total: the microseconds of ``cpu_time_total`` that threads waited, of ranges whose CPU time is known.
        backward_cpu_time_total: of a module, the part of ``cpu_time_total`` that backward passes took.
    """

    path: tuple[str, ...]
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_time_min: float
    cpu_time_max: float
    wait_time_total: float
    backward_cpu_time_total: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]

    @property
    def cpu_time(self) -> float:
        """The average time of a range, in microseconds; of a module, that of a call."""
        return (
            (self.cpu_time_total - self.backward_cpu_time_total) / self.count if self.count else 0.0
        )


class CallTree(Sequence[CallPath]):
    """The result of ``profile.tree()``: a sequence of paths, each followed by the paths below it, the longest first.

    ``above`` and ``label`` are those of ``Paths``; labels are places in ``names``.
    """

    def __init__(self, above: Places, label: Places, names: Sequence[str], sums: PathSums) -> None:
        self._above, self._label, self._names, self._sums = above, label, names, sums

    @cached_property
    def _order(self) -> list[int]:
        """The order in which the paths are listed."""
        below: dict[int, list[int]] = {}
        for path in np.argsort(self._sums.total_ns, kind="stable").tolist():
            below.setdefault(int(self._above[path]), []).append(path)
        order, waiting = [], list(below.get(-1, ()))
        while waiting:
            path = waiting.pop()
            order.append(path)
            waiting += below.get(path, ())
        return order

    @cached_property
    def _paths(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for above, label in zip(self._above.tolist(), self._label.tolist(), strict=True):
            found.append((*(found[above] if above >= 0 else ()), self._names[label]))
        return found

    def _entry(self, path: int) -> CallPath:
        sums = self._sums
        count, total, own = int(sums.count[path]), int(sums.total_ns[path]), int(sums.self_ns[path])
        shortest = int(sums.shortest_ns[path]) if count else 0
        longest, waited, backward = (
            int(sums.longest_ns[path]),
            int(sums.wait_ns[path]),
            int(sums.backward_ns[path]),
        )
        times = (
            total / 1000,
            own / 1000,
            shortest / 1000,
            longest / 1000,
            waited / 1000,
            backward / 1000,
        )
        return CallPath(self._paths[path], count, *times)

    @overload
    def __getitem__(self, index: int) -> CallPath: ...
    @overload
    def __getitem__(self, index: slice) -> list[CallPath]: ...
    def __getitem__(self, index: int | slice) -> CallPath | list[CallPath]:
        if isinstance(index, slice):
            return [self._entry(path) for path in self._order[index]]
        return self._entry(self._order[index])

    def __len__(self) -> int:
        return len(self._above)

    def __iter__(self) -> Iterator[CallPath]:
        return map(self._entry, self._order)

    def __str__(self) -> str:
        return self.table()

    def table(self, row_limit: int = 100, max_depth: int | None = None) -> str:
        """The tree as text: names are indented by their depth.

        Args:
            row_limit: paths shown: those with the most time, and what they lie in; -1 for all.
            max_depth: how deep paths are shown, 1 for the outermost alone; None for all.
        """
        rows = self.shown(row_limit, max_depth)
        whole = float(self._sums.total_ns[self._above < 0].sum()) / 1000
        columns = _columns(whole, bool(self._sums.backward_ns.any()), any(map(waits_mostly, rows)))
        text = render(rows, columns, None, -1)
        hidden = len(self) - len(rows)
        return f"{text}{hidden} more paths are not shown\n" if hidden else text

    def shown(self, row_limit: int, max_depth: int | None = None) -> list[CallPath]:
        """The paths that a table of so many rows shows, in the tree's order."""
        by_time = np.argsort(-self._sums.total_ns, kind="stable").tolist()
        candidates = [
            path for path in by_time if max_depth is None or len(self._paths[path]) <= max_depth
        ]
        shown = longest_paths(self._above, candidates, row_limit if row_limit >= 0 else len(self))
        return [self._entry(path) for path in self._order if path in shown]

    def __repr__(self) -> str:
        return f"<CallTree of {len(self)} paths, {int(self._sums.count.sum())} ranges>"


def _columns(whole: float, with_backward: bool, with_waiting: bool) -> list[TextColumn[CallPath]]:
    waiting = TextColumn[CallPath]("Waited", "wait_time_total", wait_text)
    backward = TextColumn[CallPath](
        "Backward", "backward_cpu_time_total", lambda one: time_text(one.backward_cpu_time_total)
    )
    return [
        TextColumn("Name", "name", lambda one: "  " * (len(one.path) - 1) + one.name),
        TextColumn(
            "CPU total %", "cpu_time_total", lambda one: share_text(one.cpu_time_total, whole)
        ),
        TextColumn("CPU total", "cpu_time_total", lambda one: time_text(one.cpu_time_total)),
        TextColumn(
            "Self CPU", "self_cpu_time_total", lambda one: time_text(one.self_cpu_time_total)
        ),
        *([waiting] if with_waiting else []),
        *([backward] if with_backward else []),
        TextColumn("# of Calls", "count", lambda one: str(one.count or "")),
        TextColumn(
            "CPU time avg", "cpu_time", lambda one: time_text(one.cpu_time) if one.count else ""
        ),
        TextColumn(
            "CPU time max",
            "cpu_time_max",
            lambda one: time_text(one.cpu_time_max) if one.count else "",
        ),
    ]
