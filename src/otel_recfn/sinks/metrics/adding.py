"""Adds the durations of a batch to the sums of their series: natively where that was built, else this Python twin, with equal
results.

Only ranges that have ended count: one that is sealed while it is open has no duration yet.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from otel_recfn.batches.number_sets import groups
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventKind
from otel_recfn.model.scope import NUM_SCOPES
from otel_recfn.sinks.metrics.power_indices import bucket_indices, rule_arguments
from otel_recfn.sinks.metrics.series import OVERFLOW, Slots
from otel_recfn.sinks.metrics.sums import DurationSums, Numbers, Of


class NoSeries(IntEnum):
    """Instead of a series' number."""

    OTHER_KIND = -1
    PARTIAL = -2
    UNKNOWN = -3


class Tally(IntEnum):
    """What became of rows."""

    COUNTED = 0
    OTHER_KINDS = 1
    """No ranges: marks, or changes of memory."""
    PARTIAL = 2
    """They are still open, or were when their recording ended."""
    OVERFLOWED = 3
    """Counted in the series of those that have none of their own."""


def find_series_in_python(batch: Batch, slots: Slots, numbers: Slots) -> list[int]:
    """Write the series of each row into ``numbers``, or a ``NoSeries``.

    Returns ``name * NUM_SCOPES + scope`` of each range that ``slots`` has no series for, in the order of rows.
    """
    keys = batch.name.astype(np.int64) * NUM_SCOPES + batch.scope
    partial = (batch.flags & np.uint32(EventFlag.PARTIAL)) != 0
    known = slots[keys]
    numbers[:] = np.where(known >= 0, known, np.int32(NoSeries.UNKNOWN))
    numbers[partial] = NoSeries.PARTIAL
    numbers[batch.kind != EventKind.RANGE] = NoSeries.OTHER_KIND
    unknown: list[int] = keys[numbers == NoSeries.UNKNOWN].tolist()
    return unknown


def add_durations_in_python(
    batch: Batch, numbers: Slots, series: Numbers, tally: Numbers, bounded: list[Any], powers: list[Any]
) -> None:
    """Add a batch.

    Args:
        batch: the batch.
        numbers: the series of each row, as ``find_series`` writes them.
        series: ``DurationSums.series``.
        tally: counts of rows, by ``Tally``.
        bounded: of each list of bounds, ``least_ns`` and the counts.
        powers: of each rule, what ``rule_arguments`` has of it, ranges and counts.
    """
    rows = np.flatnonzero(numbers >= 0)
    number, ns = numbers[rows], np.maximum(batch.end_ns[rows] - batch.start_ns[rows], 0)
    _add_sums(number, ns, series)
    for least_ns, counts in bounded:
        places = number * counts.shape[1] + np.searchsorted(least_ns, ns, side="right")
        np.add(counts, np.bincount(places, minlength=counts.size).reshape(counts.shape), out=counts)
    for max_scale, factor, _, max_size, of_series, counts in powers:
        _add_powers(number[ns > 0], ns[ns > 0], (max_scale, factor, max_size), of_series, counts)
    others = [int(np.count_nonzero(numbers == one)) for one in (NoSeries.OTHER_KIND, NoSeries.PARTIAL, OVERFLOW)]
    tally += (len(rows), *others)


def _add_sums(number: Slots, ns: Numbers, series: Numbers) -> None:
    found = groups(number)
    ordered = ns[np.argsort(number, kind="stable")]
    begins = np.cumsum(found.counts) - found.counts
    if not len(begins):
        return
    sums, which = series[found.numbers], np.arange(len(begins))
    least = np.minimum.reduceat(ordered, begins)
    sums[:, Of.LEAST] = np.where(sums[:, Of.COUNT] == 0, least, np.minimum(sums[:, Of.LEAST], least))
    sums[:, Of.MOST] = np.maximum(sums[:, Of.MOST], np.maximum.reduceat(ordered, begins))
    sums[:, Of.COUNT] += found.counts
    sums[:, Of.TOTAL] += np.add.reduceat(ordered, begins)
    sums[:, Of.LAST] = ordered[begins + found.counts - 1]
    sums[:, Of.ZEROS] += np.bincount(np.repeat(which, found.counts)[ordered == 0], minlength=len(begins))
    series[found.numbers] = sums


def _add_powers(number: Slots, ns: Numbers, rule: tuple[int, float, int], ranges: Numbers, counts: Numbers) -> None:
    max_scale, factor, max_size = rule
    found = groups(number)
    ordered = bucket_indices(ns, max_scale, factor)[np.argsort(number, kind="stable")]
    ends = np.cumsum(found.counts)
    for series, begin, end in zip(found.numbers.tolist(), (ends - found.counts).tolist(), ends.tolist(), strict=True):
        _add_indices(ordered[begin:end], max_size, max_scale, ranges[series], counts[series])


def _add_indices(indices: Numbers, max_size: int, max_scale: int, of_series: Numbers, counts: Numbers) -> None:
    """Add values of a series, whose buckets at the finest scale these are."""
    scale, low, high = of_series.tolist()
    at_scale = indices >> (max_scale - scale)
    least, most = int(at_scale.min()), int(at_scale.max())
    held, places = np.arange(low, high + 1), len(counts)
    if high >= low:
        least, most = min(least, low), max(most, high)
    change = 0
    while (most >> change) - (least >> change) >= max_size:
        change += 1
    values = np.concatenate((np.repeat(held, counts[held % places]), at_scale)) >> change
    counts[:] = np.bincount(values % places, minlength=places)
    of_series[:] = scale - change, least >> change, most >> change


native: Any
try:
    from otel_recfn import _native as native
except ImportError:  # no compiler where this was installed
    native = None

_add: Callable[..., None] = getattr(native, "add_durations", add_durations_in_python)
find_series: Callable[[Batch, Slots, Slots], list[int]]
find_series = getattr(native, "find_series", find_series_in_python)
"""As ``find_series_in_python``."""


def add_durations(batch: Batch, numbers: Slots, sums: DurationSums, tally: Numbers, add: Callable[..., None] = _add) -> None:
    """Add a batch, all of whose series are known and have room.

    Args:
        batch: the batch.
        numbers: the series of each row, as ``find_series`` writes them.
        sums: what it is added to.
        tally: counts of rows, by ``Tally``.
        add: who does it.
    """
    bounded = list(zip(sums.layout.least_ns, sums.bounded, strict=True))
    powers = [(*rule_arguments(one.rule), one.ranges, one.counts) for one in sums.powers]
    add(batch, numbers, sums.series, tally, bounded, powers)
