"""What the ranges of each call path come to: counts, times, and how the times are spread. Exact, and they add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Amounts = NDArray[np.int64]
Places = NDArray[np.int64]

BUCKETS = 64
NO_TIME = np.iinfo(np.int64).max


@dataclass(frozen=True)
class PathSums:
    """Columns, an entry for each path. Times in nanoseconds.

    Attributes:
        count: how many ranges.
        total_ns: from begin to end, summed.
        self_ns: the same without direct children.
        shortest_ns: NO_TIME where there is no range.
        longest_ns: 0 where there is none.
        histogram: BUCKETS counts for each path: ranges whose duration has so many binary digits.
    """

    count: Amounts
    total_ns: Amounts
    self_ns: Amounts
    shortest_ns: Amounts
    longest_ns: Amounts
    histogram: NDArray[np.int64]


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
    spread = np.bincount(path * BUCKETS + binary_digits(durations), minlength=paths * BUCKETS).reshape(paths, BUCKETS)
    return PathSums(np.bincount(path, minlength=paths), total, own, shortest, longest, spread)


def sums_of_sums(path: Places, paths: int, parts: Sequence[PathSums]) -> PathSums:
    """Sums put together.

    Args:
        path: where each entry of the parts goes, one part after the other.
        paths: how many there are.
        parts: to be added up.
    """
    sums = sums_of_ranges(path[:0], paths, path[:0], path[:0])
    first = 0
    for part in parts:
        own = path[first : first + len(part.count)]
        for name in ("count", "total_ns", "self_ns", "histogram"):
            np.add.at(getattr(sums, name), own, getattr(part, name))
        np.minimum.at(sums.shortest_ns, own, part.shortest_ns)
        np.maximum.at(sums.longest_ns, own, part.longest_ns)
        first += len(own)
    return sums


def binary_digits(numbers: Amounts) -> Places:
    """How many each number has: 0 for 0 and less, 1 for 1, 2 for 2 and 3, 3 for 4 to 7."""
    digits: Places = np.zeros(len(numbers), np.int64)
    left = np.maximum(numbers, 0).astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        large = left >> np.uint64(step) != 0
        digits += np.where(large, step, 0)
        left = np.where(large, left >> np.uint64(step), left)
    found: Places = digits + (left != 0)
    return found
