"""The one place that knows the insides of the OpenTelemetry SDK's metrics.

``Histogram.record`` takes some 10 us a value, where a range costs tens of nanoseconds. So sums are added to what the SDK keeps
for a series (its aggregation) in bulk: one value goes the SDK's own way, which makes the aggregation, with the user's views,
limits and temporality; the others are added to it. That is done while a reader collects, in a callback, when the SDK lets no
other reader of the provider collect: no aggregation is taken away meanwhile. What is read here that the SDK doesn't promise is
pinned by ``tests/unit/sinks/metrics/test_sdk_guard.py``:

    Histogram._measurement_consumer._reader_storages        what each reader keeps
    MetricReaderStorage._get_or_init_view_instrument_match  one for each view of the histogram
    _ViewInstrumentMatch.consume_measurement, ._view._attribute_keys, ._aggregation, ._attributes_aggregation
    the fields of aggregations that ``_FIELDS`` lists

    opentelemetry.sdk.metrics._internal.measurement.Measurement

Where one of them is missing there are no histograms, but counters of the same counts and times (``instruments.py``). Nothing of
the SDK is imported here: who has a histogram of the SDK has imported it.

    Histogram._is_enabled                                   without it: enabled
    <histogram aggregation>._record_min_max                 without it: true
    SdkConfiguration.exemplar_filter, _Aggregation._sample_exemplar
                                                            without them: no exemplars
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from otel_recfn.sinks.metrics.buckets import SECOND_NS, Layout, PowerRule
from otel_recfn.sinks.metrics.sdk_powers import add_powers
from otel_recfn.sinks.metrics.sums import DurationSums, Of

Attributes = Mapping[str, str | bool]
OVERFLOW_ATTRIBUTES: Attributes = {"otel.metric.overflow": True}

_SDK = "opentelemetry.sdk.metrics._internal"
_COMMON = ("_lock", "_attributes")
_HISTOGRAM = (*_COMMON, "_sum", "_min", "_max")
_POWERS = ("_value_positive", "_value_negative", "_count", "_zero_count", "_scale", "_mapping", "_max_size", "_max_scale")
_FIELDS: dict[str, tuple[str, ...]] = {
    "_ExplicitBucketHistogramAggregation": (*_HISTOGRAM, "_value", "_boundaries"),
    "_ExponentialBucketHistogramAggregation": (
        *_HISTOGRAM,
        *_POWERS,
        "_new_mapping",
        "_downscale",
        "_get_scale_change",
        "_merge",
    ),
    "_SumAggregation": (*_COMMON, "_value"),
    "_LastValueAggregation": (),
    "_DropAggregation": (),
}


class ChangedSdkError(Exception):
    """The SDK has not what this module relies on."""


class Exemplar(NamedTuple):
    """A span that was sent, of a range of a series."""

    duration_ns: int
    end_ns: int
    span: SpanContext


class SeriesSums(NamedTuple):
    """What is added for a series."""

    number: int
    attributes: Attributes
    exemplar: Exemplar | None


class _Stream(NamedTuple):
    """A view of the histogram in a reader."""

    match: Any
    kind: str
    """The class of its aggregations."""
    buckets: int
    """Which of the layout's."""


class SdkStreams:
    """All that readers make of a histogram, as of one moment: readers may be added later.

    Args:
        histogram: of the SDK.

    Raises:
        ChangedSdkError: its insides are others.
    """

    def __init__(self, histogram: Any) -> None:
        self._histogram = histogram
        try:
            self._measurement = sys.modules[f"{_SDK}.measurement"].Measurement
            self._storages = histogram._measurement_consumer._reader_storages
            self._seen = dict(self._storages)
            matches = [
                match for storage in self._seen.values() for match in storage._get_or_init_view_instrument_match(histogram)
            ]
            kinds = [_kind(match) for match in matches]
            bounds = [_bounds(match, kind) for match, kind in zip(matches, kinds, strict=True)]
            powers = [_power_rule(match, kind) for match, kind in zip(matches, kinds, strict=True)]
        except (AttributeError, KeyError) as error:
            raise ChangedSdkError(str(error)) from error
        wanted = any(kind != "_DropAggregation" for kind in kinds)
        self.layout = Layout([one for one in bounds if one is not None], [one for one in powers if one is not None], wanted)
        self._streams = [
            _Stream(match, kind, self._buckets(of_bounds, of_powers))
            for match, kind, of_bounds, of_powers in zip(matches, kinds, bounds, powers, strict=True)
        ]

    @property
    def are_current(self) -> bool:
        """False where readers were added or removed."""
        storages = self._histogram._measurement_consumer._reader_storages
        return storages is self._storages and len(storages) == len(self._seen)

    @property
    def asked(self) -> bool:
        """Whether anything takes durations now."""
        is_enabled = getattr(self._histogram, "_is_enabled", None)
        return self.layout.asked and (not callable(is_enabled) or bool(is_enabled()))

    def add(self, sums: DurationSums, series: Iterable[SeriesSums]) -> None:
        """Add sums of this layout to every reader's. To be called while the SDK collects.

        Raises:
            ChangedSdkError: an aggregation isn't where it should be.
        """
        all_series = list(series)
        for stream in self._streams:
            if stream.kind != "_DropAggregation":
                self._add_to(stream, sums, all_series)

    def _buckets(self, bounds: tuple[float, ...] | None, powers: PowerRule | None) -> int:
        if bounds is not None:
            return self.layout.bounds.index(bounds)
        return self.layout.powers.index(powers) if powers is not None else -1

    def _add_to(self, stream: _Stream, sums: DurationSums, all_series: list[SeriesSums]) -> None:
        now, keys = time.time_ns(), stream.match._view._attribute_keys
        for one in all_series:
            last = int(sums.series[one.number, Of.LAST]) / SECOND_NS
            stream.match.consume_measurement(
                self._measurement(last, now, self._histogram, Context(), dict(one.attributes)), False
            )
        made = {_key(each._attributes): each for each in stream.match._attributes_aggregation.values()}
        for one in all_series:
            seen = {key: value for key, value in one.attributes.items() if keys is None or key in keys}
            aggregation = made.get(_key(seen)) or made.get(_key(OVERFLOW_ATTRIBUTES))
            if aggregation is None:
                raise ChangedSdkError(f"no aggregation for {seen}")
            if (add := _ADD.get(stream.kind)) is not None:
                with aggregation._lock:
                    add(aggregation, sums, stream.buckets, one.number)
            if one.exemplar is not None:
                self._offer(aggregation, one.exemplar, one.attributes)

    def _offer(self, aggregation: Any, exemplar: Exemplar, attributes: Attributes) -> None:
        config = getattr(self._histogram._measurement_consumer, "_sdk_config", None)
        should_sample = getattr(getattr(config, "exemplar_filter", None), "should_sample", None)
        offer: Callable[..., None] | None = getattr(aggregation, "_sample_exemplar", None)
        if should_sample is None or offer is None:
            return
        seconds, context = exemplar.duration_ns / SECOND_NS, set_span_in_context(NonRecordingSpan(exemplar.span), Context())
        if should_sample(seconds, exemplar.end_ns, attributes, context):
            offer(self._measurement(seconds, exemplar.end_ns, self._histogram, context, dict(attributes)), True)


def _kind(match: Any) -> str:
    of_sdk = type(match._aggregation)
    kind = of_sdk.__name__
    fields = _FIELDS.get(kind)
    if fields is None or of_sdk.__module__ != f"{_SDK}.aggregation":
        raise ChangedSdkError(f"an unknown aggregation {of_sdk.__module__}.{kind}")
    for owner, names in (
        (match._aggregation, fields),
        (match, ("consume_measurement", "_attributes_aggregation")),
        (match._view, ("_attribute_keys",)),
    ):
        missing = [name for name in names if not hasattr(owner, name)]
        if missing:
            raise ChangedSdkError(f"no {', '.join(missing)} in {type(owner).__name__}")
    return kind


def _bounds(match: Any, kind: str) -> tuple[float, ...] | None:
    return tuple(match._aggregation._boundaries) if kind == "_ExplicitBucketHistogramAggregation" else None


def _power_rule(match: Any, kind: str) -> PowerRule | None:
    one = match._aggregation
    return PowerRule(one._max_size, one._max_scale) if kind == "_ExponentialBucketHistogramAggregation" else None


def _key(attributes: Mapping[str, object] | None) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((attributes or {}).items(), key=lambda item: item[0]))


def _add_bounded(aggregation: Any, sums: DurationSums, buckets: int, number: int) -> None:
    """Add what is left when the last duration has gone the SDK's way, with its lock; so do the functions below."""
    counts = sums.bounded[buckets][number].copy()
    counts[int(sums.layout.least_ns[buckets].searchsorted(sums.series[number, Of.LAST], side="right"))] -= 1
    aggregation._value = [had + more for had, more in zip(aggregation._value, counts.tolist(), strict=True)]
    _add_extremes(aggregation, sums, number)


def _add_powers(aggregation: Any, sums: DurationSums, buckets: int, number: int) -> None:
    add_powers(aggregation, sums, buckets, number)
    _add_extremes(aggregation, sums, number)


def _add_sum(aggregation: Any, sums: DurationSums, _buckets: int, number: int) -> None:
    aggregation._value += _rest_s(sums, number)


def _add_extremes(aggregation: Any, sums: DurationSums, number: int) -> None:
    aggregation._sum += _rest_s(sums, number)
    if getattr(aggregation, "_record_min_max", True):
        aggregation._min = min(aggregation._min, int(sums.series[number, Of.LEAST]) / SECOND_NS)
        aggregation._max = max(aggregation._max, int(sums.series[number, Of.MOST]) / SECOND_NS)


def _rest_s(sums: DurationSums, number: int) -> float:
    return int(sums.series[number, Of.TOTAL] - sums.series[number, Of.LAST]) / SECOND_NS


_ADD: dict[str, Callable[[Any, DurationSums, int, int], None]] = {
    "_ExplicitBucketHistogramAggregation": _add_bounded,
    "_ExponentialBucketHistogramAggregation": _add_powers,
    "_SumAggregation": _add_sum,
}
"""Of a last value the last duration is all that is kept."""
