"""What metrics cost a row: its duration summed up by scope and name; beside it,
``Histogram.record``.

    python benchmarks/bench_metrics.py [repeats]

The first in the thread that drains; what the readers' own threads do when they collect stands
below.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from lib.command_line import read_number, sized
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import COLUMN_TYPES, Track
from otel_recfn.sinks.metrics.sink import MetricsSink

ROWS = sized(20_000, 1_000)
NAMES = 120
REPEATS = sized(7, 1)
EXPONENTIAL = [View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation())]


def batch() -> Batch:
    """Operators of a training step: 120 names, from microseconds to milliseconds."""
    random = np.random.default_rng(7)
    columns = {name: np.zeros(ROWS, dtype) for name, dtype in COLUMN_TYPES.items()}
    columns["name"] = random.integers(1, NAMES + 1, ROWS).astype(np.uint32)
    columns["end_ns"] = random.lognormal(9.0, 1.5, ROWS).astype(np.int64)
    names = ["", *[f"aten::op{number}" for number in range(NAMES)]]
    return Batch(**columns, names=names, tracks=[Track(1, 1, 1, 1, "MainThread")])


def best(function: Callable[[], object], repeats: int) -> float:
    """The fastest of some runs, in nanoseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - began)
    return min(times)


def measure(title: str, views: list[View], record: float, repeats: int) -> None:
    """Print a row for the batch's ranges, beside one ``Histogram.record`` for each, and what a
    collection costs.
    """
    reader = InMemoryMetricReader()
    rows = batch()
    sink = MetricsSink(MeterProvider([reader], views=views, shutdown_on_exit=False))
    taken = best(lambda: sink.write(rows), repeats) / ROWS
    collection = min([_collected(sink, rows, reader) for _ in range(repeats)]) / 1e6
    print(f"{title:<28}{taken:>10.1f}{record / taken:>12.0f}{collection:>18.2f}")


def _collected(sink: MetricsSink, rows: Batch, reader: InMemoryMetricReader) -> int:
    sink.write(rows)
    began = time.perf_counter_ns()
    reader.get_metrics_data()
    return time.perf_counter_ns() - began


def recorded(repeats: int) -> float:
    """``Histogram.record`` of one value."""
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    histogram = provider.get_meter("bench").create_histogram("recfn.operation.duration", "s")
    attributes = {"recfn.scope": "FUNCTION", "recfn.name": "aten::add"}
    return best(lambda: [histogram.record(1e-6, attributes) for _ in range(1000)], repeats) / 1000


def main() -> None:
    """Print the table."""
    repeats = read_number(__doc__, "repeats", REPEATS)
    record = recorded(repeats)
    print(f"Histogram.record, ns a value: {record:,.0f}")
    print(f"{'':<28}{'ours':>10}{'x ours':>12}{'a collection, ms':>18}")
    measure("explicit buckets, ns a row", [], record, repeats)
    measure("exponential, ns a row", EXPONENTIAL, record, repeats)
    none = MetricsSink(None)
    rows = batch()
    print(
        f"without a meter provider, ns a row: {best(lambda: none.write(rows), repeats) / ROWS:.2f}"
    )


if __name__ == "__main__":
    main()
