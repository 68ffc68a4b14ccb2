"""Metrics of PyTorch's operators: as many as a profile sees, and no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from otel_recfn import profile

torch = pytest.importorskip("torch")

from helpers.torch_programs import Training  # noqa: E402

pytestmark = pytest.mark.torch


def points(reader: InMemoryMetricReader) -> Iterator[Any]:
    data = reader.get_metrics_data()
    metrics = [
        each
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for each in scope.metrics
    ]
    return (
        point
        for each in metrics
        if each.name == "recfn.operation.duration"
        for point in each.data.data_points
    )


@pytest.mark.parametrize(
    "views",
    [[], [View(instrument_name="*duration", aggregation=ExponentialBucketHistogramAggregation())]],
)
def test_operators_count_as_a_profile_counts_them(
    instrument: Callable[..., Any], views: list[View]
) -> None:
    reader = InMemoryMetricReader()
    training = Training()
    ours = instrument(
        meter_provider=MeterProvider([reader], views=views, shutdown_on_exit=False), modules=False
    )
    with profile(modules=False) as prof:
        for _ in range(3):
            training.step()
    ours.finish()
    measured: dict[str, tuple[int, float]] = {}
    for point in points(reader):
        count, seconds = measured.get(point.attributes["recfn.name"], (0, 0.0))
        measured[point.attributes["recfn.name"]] = (count + point.count, seconds + point.sum)
    averages = prof.key_averages()
    assert len(averages) > 20
    for average in averages:
        count, seconds = measured[average.key]
        assert (average.key, count) == (average.key, average.count)
        assert seconds == pytest.approx(average.cpu_time_total / 1e6)
