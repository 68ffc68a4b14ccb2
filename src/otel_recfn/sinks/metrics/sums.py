"""Sums of durations by series: exact counts and nanoseconds, and counts per bucket, which native code adds a batch to.

Durations are whole nanoseconds here, and seconds, as floating point numbers, in the histograms of the SDK; both agree on the
bucket of every duration, also of one that is as long as a bucket's bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from math import nextafter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.series import Slots

Numbers = NDArray[np.int64]
Bounds: TypeAlias = "tuple[float, ...]"
"""Of a histogram's buckets, in seconds, ascending."""

MIN_CAPACITY = 64
SECOND_NS = 1e9
LONGEST_NS = (1 << 63) - 1
FIELDS = 8
"""So many columns: 64 bytes."""


class Of(IntEnum):
    """The columns of ``DurationSums.series``, in nanoseconds."""

    COUNT = 0
    TOTAL = 1
    LEAST = 2
    """Where ``COUNT`` is not 0."""
    MOST = 3
    LAST = 4


class DurationSums:
    """Arrays with a row for each series; those behind the last one are empty.

    Args:
        least_ns: of each histogram's bounds, see ``least_above``.
        capacity: how many series there is room for.
    """

    def __init__(self, least_ns: list[Numbers], capacity: int = MIN_CAPACITY) -> None:
        self.least_ns, self.capacity = least_ns, capacity
        self.series: Numbers = np.zeros((capacity, FIELDS), np.int64)
        self.buckets: list[Numbers] = [np.zeros((capacity, len(least) + 1), np.int64) for least in least_ns]

    def grown(self, series: int) -> DurationSums:
        """The same with room for so many series."""
        if series <= self.capacity:
            return self
        more = DurationSums(self.least_ns, max(series, 2 * self.capacity))
        for old, new in zip((self.series, *self.buckets), (more.series, *more.buckets), strict=True):
            new[: self.capacity] = old
        return more

    def add(self, batch: Batch, numbers: Slots) -> None:
        """Add a batch, all of whose series are known and have room. A range that is sealed while it is open doesn't count.

        Args:
            batch: the batch.
            numbers: the series of each row, as ``SeriesTable.numbers_of`` gives them.
        """
        _native.add_durations(batch, numbers, self.series, list(zip(self.least_ns, self.buckets, strict=True)))

    def filled(self) -> list[int]:
        """The series that have any."""
        found: list[int] = np.flatnonzero(self.series[:, Of.COUNT]).tolist()
        return found


def least_above(bounds: Iterable[float]) -> Numbers:
    """Of each bound, the shortest duration that lies above it."""
    return np.array([_least_above(bound) for bound in bounds], np.int64)


def _least_above(bound: float) -> int:
    """The least whole number of nanoseconds that is more than so many seconds, both as floating point numbers."""
    if bound < 0:
        return 0
    near = int(min(bound * SECOND_NS, float(LONGEST_NS)))
    low, high = max(0, near - _slack(near)), min(near + _slack(near), LONGEST_NS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle / SECOND_NS > bound else (middle + 1, high)
    return low


def _slack(near: int) -> int:
    """How far off the product of two floating point numbers, and a division, may be."""
    return 2 + 4 * int(nextafter(float(near), float("inf")) - float(near))
