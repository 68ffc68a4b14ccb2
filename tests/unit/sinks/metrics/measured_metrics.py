"""A metrics sink with readers of its own, and what the SDK says of the same durations when each
is recorded by itself.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    LastValueAggregation,
    SumAggregation,
    View,
)
from opentelemetry.sdk.resources import Resource

from helpers.batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RecordScope
from otel_recfn.sinks.metrics.instruments import BOUNDS, DURATION, Report
from otel_recfn.sinks.metrics.sdk_streams import POWER_SCALE
from otel_recfn.sinks.metrics.sink import MetricsSink
from otel_recfn.sinks.metrics.sums import SeriesTable

Row = tuple[str, int, int]
"""A name, a scope and nanoseconds."""

AGGREGATIONS: Mapping[str, Any] = {
    "default": None,
    "explicit": ExplicitBucketHistogramAggregation((0.0, 1e-9, 1e-6, 2.5e-6, 0.001, 1.5)),
    "no bounds": ExplicitBucketHistogramAggregation((), record_min_max=False),
    "exponential": ExponentialBucketHistogramAggregation(),
    "few powers": ExponentialBucketHistogramAggregation(max_size=4, max_scale=3),
    "coarse powers": ExponentialBucketHistogramAggregation(max_size=2, max_scale=-1),
    "sum": SumAggregation(),
    "last": LastValueAggregation(),
    "drop": DropAggregation(),
}
TEMPORALITIES = (AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE)
RESOURCE = Resource({})  # each provider would look for one anew
ADD = (("recfn.name", "aten::add"), ("recfn.scope", "FUNCTION"))
"""The attributes of durations of ``aten::add``."""
BASE_NS = 1_700_000_000_000_000_000


def view(aggregation: str, **more: Any) -> list[View]:
    """The views of a provider whose histograms are aggregated so."""
    found = AGGREGATIONS[aggregation]
    return (
        [View(instrument_name=DURATION, aggregation=found, **more)]
        if found is not None or more
        else []
    )


def reader(temporality: AggregationTemporality) -> InMemoryMetricReader:
    return InMemoryMetricReader(
        preferred_temporality=dict.fromkeys((Histogram, Counter, ObservableCounter), temporality)
    )


def provider(readers: Sequence[InMemoryMetricReader], **options: Any) -> MeterProvider:
    return MeterProvider(readers, shutdown_on_exit=False, resource=RESOURCE, **options)


def batch_of(rows: Sequence[Row]) -> Batch:
    return make_batch(
        [
            {"name": name, "scope": scope, "start_ns": BASE_NS, "end_ns": BASE_NS + ns}
            for name, scope, ns in rows
        ]
    )


class Ours:
    """A sink, and the readers of its provider."""

    def __init__(
        self, readers: Sequence[InMemoryMetricReader], max_series: int = 1000, **options: Any
    ) -> None:
        self.readers = readers
        self.provider = provider(readers, **options)
        self.sink = MetricsSink(self.provider)
        # So many series as there are room for take long to make.
        self.sink._series = SeriesTable(max_series)  # noqa: SLF001

    def record(self, rows: Sequence[Row]) -> None:
        self.sink.write(batch_of(rows))


class Model:
    """Each duration recorded by itself."""

    def __init__(self, readers: Sequence[InMemoryMetricReader], **options: Any) -> None:
        self.readers = readers
        self.provider = provider(readers, **options)
        self._histogram = self.provider.get_meter("model").create_histogram(
            DURATION, "s", explicit_bucket_boundaries_advisory=BOUNDS
        )

    def record(self, rows: Iterable[Row]) -> None:
        for name, scope, ns in rows:
            self._histogram.record(
                ns / 1e9, {"recfn.name": name, "recfn.scope": RecordScope(scope).name}
            )


def points(
    one: InMemoryMetricReader, metric: str = DURATION
) -> dict[tuple[tuple[str, Any], ...], dict[str, Any]]:
    """The data points of a metric by their attributes, without the moments at which they were
    made.
    """
    data = one.get_metrics_data()
    found = [each for each in metrics_of(data) if each.name == metric]
    return {
        tuple(sorted(point.attributes.items())): _fields(point)
        for each in found
        for point in each.data.data_points
    }


def metrics_of(data: Any) -> list[Any]:
    if data is None:
        return []
    return [
        each
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for each in scope.metrics
    ]


def _fields(point: Any) -> dict[str, Any]:
    fields = {
        name: getattr(point, name, None)
        for name in ("count", "min", "max", "scale", "zero_count", "bucket_counts")
    }
    scale = fields["scale"]
    finer = 0 if scale is None else max(0, scale - POWER_SCALE)  # than ours
    fields["scale"] = None if scale is None else scale - finer
    for side in ("positive", "negative"):
        buckets = getattr(point, side, None)
        fields[side] = _counted(buckets, finer) if buckets is not None else None
    total = getattr(point, "sum", getattr(point, "value", None))
    return fields | {
        "total": round(total, 9) if total is not None else None,
        "bounds": getattr(point, "explicit_bounds", None),
    }


def _counted(buckets: Any, finer: int) -> dict[int, int]:
    """Counts by the bucket's number: how many empty ones stand around them is of no importance."""
    counted = collections.Counter[int]()
    for place, count in enumerate(buckets.bucket_counts):
        counted[(buckets.offset + place) >> finer] += count
    return dict(+counted)


def counts(one: InMemoryMetricReader, metric: str = DURATION) -> dict[Any, int]:
    return {attributes: point["count"] for attributes, point in points(one, metric).items()}


def values(one: InMemoryMetricReader, metric: str) -> dict[str, int]:
    """Of a metric with one attribute, its values by that."""
    return {attributes[0][1]: point["total"] for attributes, point in points(one, metric).items()}


class Counted:
    """Counters of a capture, as they are set."""

    def __init__(self, **counters: int) -> None:
        self.counters: Mapping[str, int] = {}
        self.set(**counters)

    def set(self, **counters: int) -> None:
        self.counters = {name.replace("__", "."): count for name, count in counters.items()}

    def __call__(self) -> Report:
        return self.counters
