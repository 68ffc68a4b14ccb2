"""The paths of calls, and the sums of ranges by path.

    ranges          a ──┬─ b        paths    a        a path for each name below each path:
                        ├─ b                 a > b    both b below a have one
                        └─ c                 a > c

A forest of ranges is followed a level at a time, the outermost ranges first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import Indices, indices_in

Amounts = NDArray[np.int64]
NO_TIME = np.iinfo(np.int64).max


class Paths(NamedTuple):
    """The distinct paths of a forest, parents before their children."""

    parent: Indices
    """The parent of each path; -1 for the outermost."""
    label: Indices
    """The last part of each path, as a number."""
    row_path: Indices
    """The path of each row."""


def call_paths(parent: Indices, label: Indices) -> Paths:
    """The distinct paths of a forest.

    Args:
        parent: the parent of each row; -1 at the top.
        label: the name of each row, as a number.
    """
    finder = _PathFinder(parent, label)
    by_parent = np.argsort(parent, kind="stable")
    lengths = np.bincount(parent[parent >= 0], minlength=len(parent))
    outermost = int(np.count_nonzero(parent < 0))
    begins = outermost + np.cumsum(lengths) - lengths  # of the rows directly below each
    level = by_parent[:outermost]
    while len(level):
        if len(level) == 1:
            row = level[0]
            finder.add_row(row)
            level = by_parent[begins[row] : begins[row] + lengths[row]]
        else:
            finder.add_level(level)
            level = level[lengths[level] > 0]
            level = by_parent[indices_in(begins[level], lengths[level])]
    return finder.paths()


class _PathFinder:
    """The paths of the levels of a forest, the outermost level first."""

    def __init__(self, parent: Indices, label: Indices) -> None:
        self._parent = parent
        self._label = label
        self._row_path = np.full(len(parent), -1, np.int64)
        self._parents: list[Indices] = [np.zeros(0, np.int64)]
        self._labels: list[Indices] = [np.zeros(0, np.int64)]
        self._count = 0

    def add_level(self, level: Indices) -> None:
        """Add the rows of a level: those with the same parent path and label have one path."""
        parent = self._parent[level]
        parent_path = np.where(parent >= 0, np.take(self._row_path, parent), -1)
        order = np.lexsort((self._label[level], parent_path))
        rows = level[order]
        parent_path = parent_path[order]
        label = self._label[rows]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (np.diff(parent_path) != 0) | (np.diff(label) != 0)
        self._row_path[rows] = self._count + np.cumsum(first) - 1
        self._parents.append(parent_path[first])
        self._labels.append(label[first])
        self._count += int(first.sum())

    def add_row(self, row: int) -> None:
        """Add a level of one row: calls that nest as deep as there are calls make as many levels,
        for which sorting columns would be slow.
        """
        parent = self._parent[row : row + 1]
        self._row_path[row] = self._count
        self._parents.append(self._row_path[parent] if parent[0] >= 0 else parent)
        self._labels.append(self._label[row : row + 1])
        self._count += 1

    def paths(self) -> Paths:
        """The paths that were found."""
        return Paths(np.concatenate(self._parents), np.concatenate(self._labels), self._row_path)


def longest_paths(parent_indices: Indices, candidates: Iterable[int], limit: int) -> set[int]:
    """The first of these paths that fit, with the paths around them, into a limit."""
    found: set[int] = set()
    parents = parent_indices.tolist()
    for path in candidates:
        ancestors = []
        while path >= 0 and path not in found:
            ancestors.append(path)
            path = parents[path]
        if len(found) + len(ancestors) <= limit:
            found.update(ancestors)
        if len(found) == limit:
            break
    return found


class Ranges(NamedTuple):
    """The ranges of a batch, as columns of equal length."""

    rows: Indices
    parent: Indices
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


def range_sums(
    path: Indices,
    paths: int,
    ranges: Ranges,
    durations: Amounts | None = None,
    counted: NDArray[np.bool_] | None = None,
) -> PathSums:
    """The sums of ranges by path.

    Args:
        path: the path of each range.
        paths: the number of paths.
        ranges: the ranges.
        durations: their durations, if other ones than theirs count.
        counted: the paths' own ranges; of the others only the self times count. None: all.
    """
    durations = ranges.durations if durations is None else durations
    wait_ns = ranges.wait_ns
    own = np.zeros(paths, np.int64)
    np.add.at(own, path, ranges.self_ns)
    if counted is not None:
        path = path[counted]
        durations = durations[counted]
        wait_ns = wait_ns[counted]
    total, waited, longest = (np.zeros(paths, np.int64) for _ in range(3))
    shortest = np.full(paths, NO_TIME, np.int64)
    np.add.at(total, path, durations)
    np.add.at(waited, path, wait_ns)
    np.minimum.at(shortest, path, durations)
    np.maximum.at(longest, path, durations)
    return PathSums(
        count=np.bincount(path, minlength=paths),
        total_ns=total,
        self_ns=own,
        shortest_ns=shortest,
        longest_ns=longest,
        wait_ns=waited,
        backward_ns=np.zeros(paths, np.int64),
    )
