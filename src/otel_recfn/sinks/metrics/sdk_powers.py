"""Adds counts in exponential buckets to an exponential histogram of the SDK, as if each duration had been recorded there.

Both have a scale of their own; the histogram goes to the smaller one, or below it, until all fits into its buckets. Indices are
those of finer buckets divided by powers of two, rounded down, so that counts stay exact.
"""

from __future__ import annotations

from typing import Any

from otel_recfn.sinks.metrics.buckets import SECOND_NS
from otel_recfn.sinks.metrics.sums import DurationSums, Of

_NO_DELTA = None
"""In place of the temporality, which the SDK asks whether to subtract."""


def add_powers(aggregation: Any, sums: DurationSums, buckets: int, number: int) -> None:
    """Add the counts of a series, but for its last duration, which the histogram has already. Its lock is held."""
    last = int(sums.series[number, Of.LAST])
    scale, low, counts = sums.powers[buckets].buckets(number)
    if last:
        counts[aggregation._new_mapping(scale).map_to_index(last / SECOND_NS) - low] -= 1
    aggregation._count += int(sums.series[number, Of.COUNT]) - 1
    aggregation._zero_count += int(sums.series[number, Of.ZEROS]) - (not last)
    if any(counts):
        _merge(aggregation, scale, low, counts)


def _merge(aggregation: Any, scale: int, low: int, counts: list[int]) -> None:
    held = aggregation._value_positive
    ours = _buckets(type(held), low, counts)
    target = _common_scale(aggregation, held, scale, ours)
    aggregation._downscale(aggregation._mapping.scale - target, held, aggregation._value_negative)
    aggregation._mapping, aggregation._scale = aggregation._new_mapping(target), target
    if not len(held):
        held.index_start = held.index_end = held.index_base = ours.index_start >> (scale - target)
    aggregation._merge(held, ours, scale, target, _NO_DELTA)


def _common_scale(aggregation: Any, held: Any, scale: int, ours: Any) -> int:
    """The largest scale, up to both, at which the buckets of both are few enough."""
    target: int = min(aggregation._mapping.scale, scale)
    low, high = ours.index_start >> (scale - target), ours.index_end >> (scale - target)
    if len(held):
        change = aggregation._mapping.scale - target
        low, high = min(low, held.index_start >> change), max(high, held.index_end >> change)
    return target - int(aggregation._get_scale_change(low, high))


def _buckets(of_sdk: type[Any], low: int, counts: list[int]) -> Any:
    """The SDK's form of them."""
    buckets = of_sdk()
    buckets._counts = counts
    buckets.index_base = buckets.index_start = low
    buckets.index_end = low + len(counts) - 1
    return buckets
