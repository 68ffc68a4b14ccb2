"""The one place that knows the insides of the OpenTelemetry SDK's metrics.

``Histogram.record`` takes some 10 us a value, where a range costs tens of nanoseconds. So sums are
added to what the SDK keeps for a series (its aggregation) in bulk: one value goes the SDK's own
way, which makes the aggregation, with the user's views, limits and temporality; the others are
added to it. That is done while a reader collects, in a callback, when the SDK lets no other reader
of the provider collect: no aggregation is taken away meanwhile. What is read here that the SDK
doesn't promise:

    Histogram._measurement_consumer._reader_storages        what each reader keeps
    MetricReaderStorage._get_or_init_view_instrument_match  one for each view of the histogram
    _ViewInstrumentMatch.consume_measurement, ._view._attribute_keys, ._aggregation,
        ._attributes_aggregation
    the fields of aggregations that hold values, and methods of exponential ones
    opentelemetry.sdk.metrics._internal.measurement.Measurement

Without one of them no more durations are handed on. Nothing of the SDK is imported here: its
histograms' owner did. These may be missing:

    Histogram._is_enabled                                   without it: enabled
    <histogram aggregation>._record_min_max                 without it: true

An exponential histogram gets counts in buckets of one scale, ``POWER_SCALE``. It goes to that, or
below it, until all fits into its own buckets: indices are those of finer buckets divided by powers
of two, rounded down, so that counts stay exact.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.context import Context

from otel_recfn.sinks.metrics.sums import (
    SECOND_NS,
    Bounds,
    DurationSums,
    Numbers,
    Series,
    SumColumn,
    min_above,
)

Attributes = Mapping[str, str | bool]
OVERFLOW_ATTRIBUTES: Attributes = {"otel.metric.overflow": True}

POWER_SCALE = 4
"""The scale of exponential histograms: 16 buckets for each doubling, each 4.4 % wide."""
_LOWEST_POWER = -30 << POWER_SCALE
_HIGHEST_POWER = 33 << POWER_SCALE
"""The range of powers: from 1 ns, which is above 2**-30 s, to 272 years."""
POWERS: Bounds = tuple(
    2.0 ** (power / (1 << POWER_SCALE)) for power in range(_LOWEST_POWER, _HIGHEST_POWER + 1)
)

_SDK = "opentelemetry.sdk.metrics._internal"
_NO_DELTA = None
"""A value in place of the temporality, by which the SDK decides whether to subtract."""
_EXPLICIT, _POWERS = "_ExplicitBucketHistogramAggregation", "_ExponentialBucketHistogramAggregation"
_SUM, _LAST_VALUE, _DROP = "_SumAggregation", "_LastValueAggregation", "_DropAggregation"


class ChangedSdkError(Exception):
    """The SDK lacks what this module relies on."""


class CollectedSums(NamedTuple):
    """Sums, and the series that they belong to."""

    streams: SdkStreams
    sums: DurationSums
    series: list[Series | None]
    """The series by number: those of the sums, and maybe more."""


class _Stream(NamedTuple):
    """A view of the histogram in a reader."""

    match: Any
    kind: str
    """The class of its aggregations."""
    bounds: Bounds | None
    """The bounds of its buckets; None if it has none."""


class SdkStreams:
    """The streams of a histogram of the SDK at one moment: readers may be added later.

    Attributes:
        min_ns: of each list of bounds that sums need buckets for, see ``DurationSums``.

    Raises:
        ChangedSdkError: its insides are others.
    """

    def __init__(self, histogram: Any) -> None:
        self._histogram = histogram
        try:
            self._measurement = sys.modules[f"{_SDK}.measurement"].Measurement
            self._storages = histogram._measurement_consumer._reader_storages
            self._seen = dict(self._storages)
            found = [
                storage._get_or_init_view_instrument_match(histogram)
                for storage in self._seen.values()
            ]
            streams = [
                _Stream(match, kind := _kind(match), _bounds(match, kind))
                for matches in found
                for match in matches
            ]
        except (AttributeError, KeyError) as error:
            raise ChangedSdkError(str(error)) from error
        self._streams = [stream for stream in streams if stream.kind != _DROP]
        self._bounds = list(
            dict.fromkeys(stream.bounds for stream in self._streams if stream.bounds is not None)
        )
        self.min_ns = [min_above(bounds) for bounds in self._bounds]

    @property
    def are_current(self) -> bool:
        """Whether no readers were added or removed."""
        storages = self._histogram._measurement_consumer._reader_storages
        return storages is self._storages and len(storages) == len(self._seen)

    @property
    def are_used(self) -> bool:
        """Whether anything takes durations now."""
        is_enabled = getattr(self._histogram, "_is_enabled", None)
        return bool(self._streams) and (not callable(is_enabled) or bool(is_enabled()))

    def add(self, sums: DurationSums, series: Mapping[int, Attributes]) -> None:
        """Add the sums of series, whose attributes are given by number, to every reader's.

        Call it while the SDK collects.

        Raises:
            ChangedSdkError: an aggregation isn't where it should be.
        """
        for stream in self._streams:
            self._add_to(stream, sums, series)

    def _add_to(
        self, stream: _Stream, sums: DurationSums, series: Mapping[int, Attributes]
    ) -> None:
        now = time.time_ns()
        keys = stream.match._view._attribute_keys
        for number, attributes in series.items():
            last = int(sums.series[number, SumColumn.LAST]) / SECOND_NS
            measured = self._measurement(last, now, self._histogram, Context(), dict(attributes))
            stream.match.consume_measurement(measured, False)
        made = {
            _key(each._attributes): each for each in stream.match._attributes_aggregation.values()
        }
        for number, attributes in series.items():
            seen = {key: value for key, value in attributes.items() if keys is None or key in keys}
            aggregation = made.get(_key(seen)) or made.get(_key(OVERFLOW_ATTRIBUTES))
            if aggregation is None:
                raise ChangedSdkError(f"no aggregation for {seen}")
            with aggregation._lock:
                self._add_difference(stream, aggregation, sums, number)

    def _add_difference(
        self, stream: _Stream, aggregation: Any, sums: DurationSums, number: int
    ) -> None:
        """Add the rest of a series, whose last duration has gone the SDK's way.

        A last value keeps only that one.
        """
        difference_s = (
            int(sums.series[number, SumColumn.TOTAL] - sums.series[number, SumColumn.LAST])
            / SECOND_NS
        )
        if stream.kind == _SUM:
            aggregation._value += difference_s
        if stream.bounds is None:
            return
        counts = self._count_difference(stream.bounds, sums, number)
        if stream.kind == _POWERS:
            _add_powers(aggregation, counts)
        else:
            aggregation._value = [
                had + more for had, more in zip(aggregation._value, counts.tolist(), strict=True)
            ]
        aggregation._sum += difference_s
        if getattr(aggregation, "_record_min_max", True):
            aggregation._min = min(
                aggregation._min, int(sums.series[number, SumColumn.MINIMUM]) / SECOND_NS
            )
            aggregation._max = max(
                aggregation._max, int(sums.series[number, SumColumn.MAXIMUM]) / SECOND_NS
            )

    def _count_difference(self, bounds: Bounds, sums: DurationSums, number: int) -> Numbers:
        which = self._bounds.index(bounds)
        counts: Numbers = sums.buckets[which][number].copy()
        counts[
            int(sums.min_ns[which].searchsorted(sums.series[number, SumColumn.LAST], side="right"))
        ] -= 1
        return counts


def _kind(match: Any) -> str:
    sdk_class = type(match._aggregation)
    if (
        sdk_class.__name__ not in (_EXPLICIT, _POWERS, _SUM, _LAST_VALUE, _DROP)
        or sdk_class.__module__ != f"{_SDK}.aggregation"
    ):
        raise ChangedSdkError(f"an unknown aggregation {sdk_class.__module__}.{sdk_class.__name__}")
    return sdk_class.__name__


def _bounds(match: Any, kind: str) -> Bounds | None:
    if kind == _POWERS:
        return POWERS
    return tuple(match._aggregation._boundaries) if kind == _EXPLICIT else None


def _key(attributes: Mapping[str, object] | None) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((attributes or {}).items(), key=lambda item: item[0]))


def _add_powers(aggregation: Any, counts: Numbers) -> None:
    """Add counts in the buckets of ``POWERS`` to an exponential histogram.

    Only 0 ns is below the first bound.
    """
    aggregation._count += int(counts.sum())
    aggregation._zero_count += int(counts[0])
    filled = counts[1:].nonzero()[0].tolist()
    if filled:
        own_buckets = aggregation._value_positive
        ours = _buckets(
            type(own_buckets),
            filled[0] + _LOWEST_POWER,
            counts[1 + filled[0] : 2 + filled[-1]].tolist(),
        )
        target = _common_scale(aggregation, own_buckets, ours)
        aggregation._downscale(
            aggregation._mapping.scale - target, own_buckets, aggregation._value_negative
        )
        aggregation._mapping = aggregation._new_mapping(target)
        aggregation._scale = target
        if not len(own_buckets):
            own_buckets.index_start = own_buckets.index_end = own_buckets.index_base = (
                ours.index_start >> (POWER_SCALE - target)
            )
        aggregation._merge(own_buckets, ours, POWER_SCALE, target, _NO_DELTA)


def _buckets(sdk_class: type[Any], low: int, counts: list[int]) -> Any:
    """The buckets in the SDK's form."""
    buckets = sdk_class()
    buckets._counts = counts
    buckets.index_base = buckets.index_start = low
    buckets.index_end = low + len(counts) - 1
    return buckets


def _common_scale(aggregation: Any, own_buckets: Any, ours: Any) -> int:
    """The largest scale, up to both, at which the buckets of both are few enough."""
    target: int = min(aggregation._mapping.scale, POWER_SCALE)
    low = ours.index_start >> (POWER_SCALE - target)
    high = ours.index_end >> (POWER_SCALE - target)
    if len(own_buckets):
        change = aggregation._mapping.scale - target
        low = min(low, own_buckets.index_start >> change)
        high = max(high, own_buckets.index_end >> change)
    return target - int(aggregation._get_scale_change(low, high))
