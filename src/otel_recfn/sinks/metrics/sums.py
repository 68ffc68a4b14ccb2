"""Sums of durations by series: exact counts and nanoseconds, and counts per bucket."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from otel_recfn.sinks.metrics.buckets import Layout, PowerRule

Numbers = NDArray[np.int64]
MIN_CAPACITY = 64


class Of(IntEnum):
    """The columns of ``DurationSums.series``, in nanoseconds."""

    COUNT = 0
    TOTAL = 1
    LEAST = 2
    """Where ``COUNT`` is not 0."""
    MOST = 3
    LAST = 4
    ZEROS = 5
    """How many took 0 ns."""


FIELDS = 8
"""So many columns: 64 bytes."""


class Range(IntEnum):
    """The columns of ``PowerCounts.ranges``."""

    SCALE = 0
    LOW = 1
    HIGH = 2
    """The buckets at both ends, at that scale; ``HIGH`` below ``LOW``: there are none."""


class PowerCounts:
    """Counts in exponential buckets, a row for each series.

    Bucket ``n`` stands at ``n`` modulo the row's length, a power of two, so that nothing moves when the range grows.
    """

    def __init__(self, rule: PowerRule, capacity: int) -> None:
        self.rule = rule
        self.ranges: Numbers = np.zeros((capacity, len(Range)), np.int64)
        self.ranges[:] = rule.max_scale, 0, -1
        self.counts: Numbers = np.zeros((capacity, rule.places), np.int64)

    def buckets(self, series: int) -> tuple[int, int, list[int]]:
        """The scale, the lowest bucket's number, and the counts from there on; no counts where there are none."""
        scale, low, high = self.ranges[series].tolist()
        return scale, low, self.counts[series, np.arange(low, high + 1) % self.rule.places].tolist()


class DurationSums:
    """Arrays with a row for each series; those behind the last one are empty.

    Args:
        layout: which buckets.
        capacity: how many series there is room for.
    """

    def __init__(self, layout: Layout, capacity: int = MIN_CAPACITY) -> None:
        self.layout, self.capacity = layout, capacity
        self.series: Numbers = np.zeros((capacity, FIELDS), np.int64)
        self.bounded: list[Numbers] = [np.zeros((capacity, len(least) + 1), np.int64) for least in layout.least_ns]
        self.powers = [PowerCounts(rule, capacity) for rule in layout.powers]

    def grown(self, series: int) -> DurationSums:
        """The same with room for so many series."""
        if series <= self.capacity:
            return self
        more = DurationSums(self.layout, max(series, 2 * self.capacity))
        more.series[: self.capacity] = self.series
        for old, new in zip(self.bounded, more.bounded, strict=True):
            new[: self.capacity] = old
        for before, after in zip(self.powers, more.powers, strict=True):
            after.ranges[: self.capacity], after.counts[: self.capacity] = before.ranges, before.counts
        return more

    def filled(self) -> list[int]:
        """The series that have any."""
        found: list[int] = np.flatnonzero(self.series[:, Of.COUNT]).tolist()
        return found
