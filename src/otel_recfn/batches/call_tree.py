"""Sums of ranges by call path: what ran in what, how often, and for how long.

rows ──► labels ──► paths, a level at a time: one for each name below each path ──► their sums ──► CallTree ──► read, printed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args, overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.averages import TextColumn, nesting, render, self_times, share_text, time_text
from otel_recfn.batches.number_sets import Places, places_in
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import SOURCES, EventKind, EventSource

Amounts = NDArray[np.int64]
NO_TIME = np.iinfo(np.int64).max
By = Literal["name", "thread", "module"]
OUTSIDE = "(in no module)"


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


@dataclass(frozen=True)
class PathSums:
    """Sums by path, as columns with an entry for each path. Times are in nanoseconds.

    Attributes:
        count: how many ranges.
        total_ns: from begin to end, summed.
        self_ns: the same without direct children.
        shortest_ns: NO_TIME if there is no range.
        longest_ns: 0 if there is none.
    """

    count: Amounts
    total_ns: Amounts
    self_ns: Amounts
    shortest_ns: Amounts
    longest_ns: Amounts


def sums_of_ranges(
    path: Places, paths: int, durations: Amounts, self_ns: Amounts, counted: NDArray[np.bool_] | None = None
) -> PathSums:
    """The sums of ranges by path.

    Args:
        path: of each range.
        paths: how many there are.
        durations: of each range.
        self_ns: of each range.
        counted: which ranges are the path's own; of others it has the time for themselves alone. None: all.
    """
    own = np.zeros(paths, np.int64)
    np.add.at(own, path, self_ns)
    if counted is not None:
        path, durations = path[counted], durations[counted]
    total, shortest, longest = np.zeros(paths, np.int64), np.full(paths, NO_TIME, np.int64), np.zeros(paths, np.int64)
    np.add.at(total, path, durations)
    np.minimum.at(shortest, path, durations)
    np.maximum.at(longest, path, durations)
    return PathSums(np.bincount(path, minlength=paths), total, own, shortest, longest)


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
    """

    path: tuple[str, ...]
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_time_min: float
    cpu_time_max: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]

    @property
    def cpu_time(self) -> float:
        """The average time of a range, in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0


class CallTree(Sequence[CallPath]):
    """The result of ``profile.tree()``: a sequence of paths, each followed by the paths below it, the longest first.

    Args:
        above: of each path, the one that it lies in, which stands before it; -1 for the outermost.
        label: of each path, the place of its name in ``names``.
        names: what paths are called.
        sums: of each path.
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
        times = (total / 1000, own / 1000, shortest / 1000, int(sums.longest_ns[path]) / 1000)
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
        shown = self._shown(row_limit, max_depth)
        rows = [entry for path, entry in zip(self._order, self, strict=True) if path in shown]
        whole = float(self._sums.total_ns[self._above < 0].sum()) / 1000
        text = render(rows, _columns(whole), None, -1)
        hidden = len(self) - len(rows)
        return f"{text}{hidden} more paths are not shown\n" if hidden else text

    def _shown(self, row_limit: int, max_depth: int | None) -> set[int]:
        by_time = np.argsort(-self._sums.total_ns, kind="stable").tolist()
        shown: set[int] = set()
        for path in by_time:
            deep = max_depth is not None and len(self._paths[path]) > max_depth
            around = set()  # the shown paths and their ancestors
            while path >= 0 and path not in shown:
                around.add(path)
                path = int(self._above[path])
            if not deep and (row_limit < 0 or len(shown) + len(around) <= row_limit):
                shown |= around
        return shown

    def __repr__(self) -> str:
        return f"<CallTree of {len(self)} paths, {int(self._sums.count.sum())} ranges>"


def _columns(whole: float) -> list[TextColumn[CallPath]]:
    return [
        TextColumn("Name", "name", lambda one: "  " * (len(one.path) - 1) + one.name),
        TextColumn("CPU total %", "cpu_time_total", lambda one: share_text(one.cpu_time_total, whole)),
        TextColumn("CPU total", "cpu_time_total", lambda one: time_text(one.cpu_time_total)),
        TextColumn("Self CPU", "self_cpu_time_total", lambda one: time_text(one.self_cpu_time_total)),
        TextColumn("# of Calls", "count", lambda one: str(one.count or "")),
        TextColumn("CPU time avg", "cpu_time", lambda one: time_text(one.cpu_time) if one.count else ""),
        TextColumn("CPU time max", "cpu_time_max", lambda one: time_text(one.cpu_time_max) if one.count else ""),
    ]


class _Ranges(NamedTuple):
    """The ranges of a batch, as columns of equal length."""

    rows: Places
    above: Places
    """The range around each, as a place in these columns; -1 at the top."""
    durations: Amounts
    self_ns: Amounts


def tree_of_rows(batch: Batch, by: By = "name") -> CallTree:
    """The tree of a batch's ranges. The self times of its paths add up to those of the ranges.

    Args:
        batch: its ranges' parents are in it, or they are outermost.
        by: ``"name"``: a path for each name in each path; ``"thread"``: the same in each thread, where a range that lies in
            one of another thread is outermost; ``"module"``: module calls alone, each with the time of what isn't in another.

    Raises:
        SettingError: another word.
    """
    if by not in get_args(By):
        raise SettingError(f"by={by!r} is no way to group a tree; allowed: {', '.join(get_args(By))}")
    rows = np.flatnonzero(batch.kind == EventKind.RANGE)
    nested = nesting(batch)
    place, above = np.full(len(batch), -1, np.int64), np.full(len(batch), -1, np.int64)
    place[rows] = np.arange(len(rows))
    above[nested.child] = place[nested.parent]
    ranges = _Ranges(rows, above[rows], np.maximum(batch.end_ns - batch.start_ns, 0)[rows], self_times(batch, nested)[rows])
    if by == "module":
        return _by_module(batch, ranges)
    return _by_thread(batch, ranges) if by == "thread" else _by_name(batch, ranges)


def _by_name(batch: Batch, ranges: _Ranges) -> CallTree:
    paths = call_paths(ranges.above, batch.name[ranges.rows].astype(np.int64))
    sums = sums_of_ranges(paths.of_row, len(paths.above), ranges.durations, ranges.self_ns)
    return CallTree(paths.above, paths.label, batch.names, sums)


def _by_thread(batch: Batch, ranges: _Ranges) -> CallTree:
    thread = batch.thread[ranges.rows].astype(np.int64)
    threads, member = np.unique(thread, return_inverse=True)
    in_thread = (ranges.above >= 0) & (thread == thread[ranges.above]) if len(thread) else thread != 0
    above = np.where(in_thread, ranges.above, len(thread) + member)  # threads follow the ranges
    labels = np.append(batch.name[ranges.rows].astype(np.int64), len(batch.names) + np.arange(len(threads)))
    paths = call_paths(np.append(above, np.full(len(threads), -1)), labels)
    sums = sums_of_ranges(paths.of_row[: len(thread)], len(paths.above), ranges.durations, ranges.self_ns)
    outermost = np.flatnonzero((paths.above >= 0) & (np.take(paths.above, paths.above) < 0))
    np.add.at(sums.total_ns, paths.above[outermost], sums.total_ns[outermost])
    tracks = [batch.tracks[index] for index in threads.tolist()]
    names = [*batch.names, *[f"{track.name or 'thread'} {track.thread_id}" for track in tracks]]
    return CallTree(paths.above, paths.label, names, sums)


def _by_module(batch: Batch, ranges: _Ranges) -> CallTree:
    is_call = batch.source[ranges.rows] == EventSource.MODULE
    above = _nearest(ranges.above, is_call)
    taken_by = np.where(is_call, np.arange(len(above)), above)
    outside = taken_by < 0
    names, label = _module_names(batch, ranges.rows, is_call)
    shown = np.flatnonzero(is_call | outside)
    place = np.full(len(above) + 1, -1, np.int64)  # the last entry is for ranges at the top
    place[shown] = np.arange(len(shown))
    paths = call_paths(place[above[shown]], np.where(outside, 0, label)[shown])
    path = paths.of_row[place[np.where(outside, np.arange(len(above)), taken_by)]]
    own = np.where(outside, ranges.self_ns, ranges.durations)
    sums = sums_of_ranges(path, len(paths.above), own, ranges.self_ns, is_call | outside)
    return CallTree(paths.above, paths.label, names, sums)


def _nearest(above: Places, wanted: NDArray[np.bool_]) -> Places:
    """The nearest of the wanted ranges around each; -1 if there is none."""
    nearest: Places = above.copy()
    while True:
        passed = np.flatnonzero(nearest >= 0)
        passed = passed[~wanted[nearest[passed]]]
        if not len(passed):
            return nearest
        nearest[passed] = above[nearest[passed]]


def _module_names(batch: Batch, rows: Places, is_call: NDArray[np.bool_]) -> tuple[list[str], Places]:
    """The name of the module in each row's call: its path in the model, or its class if it is outermost."""
    prefix = SOURCES[EventSource.MODULE].call_prefix or ""
    numbers, label = {OUTSIDE: 0}, np.zeros(len(rows), np.int64)
    for place in np.flatnonzero(is_call).tolist():
        row = rows[place]
        text = batch.names[batch.module[row]] or batch.names[batch.name[row]].removeprefix(prefix)
        label[place] = numbers.setdefault(text, len(numbers))
    return list(numbers), label
