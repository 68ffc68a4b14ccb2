"""Rows put together by call path, a path for each name below each path, as columns; and what the ranges of each come to.

Works a level at a time: the outermost rows by name, then the rows below these by path and name, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import places_in

Places = NDArray[np.int64]
Amounts = NDArray[np.int64]
NO_TIME = np.iinfo(np.int64).max


class Paths(NamedTuple):
    """Parents stand before their children."""

    above: Places
    """Of each path, the one it lies in; -1 for the outermost."""
    label: Places
    """Of each path, its last part."""
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
        level = _below(level, by_above, sorted_above)
    return Paths(np.concatenate(path_above), np.concatenate(path_label), of_row)


def _below(rows: Places, by_above: Places, sorted_above: Places) -> Places:
    """The rows that lie directly in these."""
    begin = np.searchsorted(sorted_above, rows)
    lengths = np.searchsorted(sorted_above, rows, side="right") - begin
    begin, lengths = begin[lengths > 0], lengths[lengths > 0]
    found: Places = by_above[places_in(begin, lengths)]
    return found


@dataclass(frozen=True)
class PathSums:
    """Columns, an entry for each path. Times in nanoseconds.

    Attributes:
        count: how many ranges.
        total_ns: from begin to end, summed.
        self_ns: the same without direct children.
        shortest_ns: NO_TIME where there is no range.
        longest_ns: 0 where there is none.
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
