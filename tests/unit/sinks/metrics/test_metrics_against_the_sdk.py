"""Data points are those that the SDK makes of the same durations when each of them is recorded by
itself.

Of an exponential histogram they are so at our scale, where the SDK's would be finer.
"""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_metrics import (
    AGGREGATIONS,
    TEMPORALITIES,
    Model,
    Ours,
    Row,
    points,
    provider,
    reader,
    view,
)
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from helpers.example_counts import examples
from helpers.timeouts import PATIENCE_S
from otel_recfn.sinks.metrics.instruments import DURATION

pytestmark = pytest.mark.one_python

DURATIONS = st.one_of(
    st.sampled_from(
        [0, 1, 2, 1000, 1_000_000, 500_000_000, 1_000_000_000, 2_000_000_000, 2_500, 1_500_000_000]
    ),
    st.integers(0, 100_000),
    st.integers(0, 10**12),
)
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(
        st.sampled_from(["aten::add", "aten::mm", "step"]), st.sampled_from([0, 1, 7]), DURATIONS
    ),
    max_size=25,
)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("temporality", TEMPORALITIES)
@examples(40)
@given(collections=st.lists(st.lists(ROWS, max_size=3), min_size=1, max_size=4))
def test_points_are_as_if_each_duration_was_recorded(
    aggregation: str, temporality: AggregationTemporality, collections: list[list[list[Row]]]
) -> None:
    ours = Ours([reader(temporality)], views=view(aggregation))
    model = Model([reader(temporality)], views=view(aggregation))
    for batches in collections:
        for rows in batches:
            ours.record(rows)
            model.record(rows)
        if not agree(ours, model):
            return


def agree(ours: Ours, model: Model) -> bool:
    """The points are the same; False where the SDK fails with both: few buckets, and at first
    nothing but zeros.
    """
    both = [points_or_error(one.readers[0]) for one in (ours, model)]
    assert both[0] == both[1]
    return not isinstance(both[0], str)


def points_or_error(one: InMemoryMetricReader) -> object:
    """The points, or what the SDK says when it fails."""
    try:
        return points(one)
    except Exception as error:
        return str(error)


@examples(30)
@given(st.lists(st.tuples(ROWS, st.integers(0, 2)), min_size=1, max_size=6))
def test_readers_that_collect_at_different_moments_see_all(
    steps: list[tuple[list[Row], int]],
) -> None:
    delta, cumulative = TEMPORALITIES
    ours = Ours([reader(delta), reader(cumulative), reader(delta)], views=view("exponential"))
    model = Model([reader(delta), reader(cumulative), reader(delta)], views=view("exponential"))
    for rows, which in steps:
        ours.record(rows)
        model.record(rows)
        assert points(ours.readers[which]) == points(model.readers[which])


@pytest.mark.parametrize("temporality", TEMPORALITIES)
@pytest.mark.parametrize("keys", [{"recfn.scope"}, {"recfn.name"}, set()])
def test_a_view_that_keeps_some_attributes_puts_series_together(
    temporality: AggregationTemporality, keys: set[str]
) -> None:
    rows: list[Row] = [("a", 0, 10), ("b", 0, 5_000), ("a", 7, 3_000_000), ("b", 7, 0)]
    for aggregation in ("exponential", "explicit"):
        views = view(aggregation, attribute_keys=keys)
        ours = Ours([reader(temporality)], views=views)
        model = Model([reader(temporality)], views=views)
        for _ in range(3):
            ours.record(rows)
            model.record(rows)
            assert points(ours.readers[0]) == points(model.readers[0])


def test_several_views_of_the_histogram_give_a_metric_each() -> None:
    views = [
        *view("exponential", name="fine"),
        *view("explicit", name="coarse"),
        *view("sum", name="spent"),
    ]
    ours = Ours([reader(TEMPORALITIES[0])], views=views)
    model = Model([reader(TEMPORALITIES[0])], views=views)
    for one in (ours, model):
        one.record([("a", 0, 10), ("a", 0, 20_000), ("b", 0, 7)])
    data = {each: [points_of(one, each) for one in (ours, model)] for each in ("fine",)}
    assert data["fine"][0] == data["fine"][1] != {}
    for one in (ours, model):
        one.record([("a", 0, 11)])
    assert points_of(ours, "coarse") == points_of(model, "coarse") != {}
    for one in (ours, model):
        one.record([("c", 0, 11)])
    assert points_of(ours, "spent") == points_of(model, "spent") != {}


def points_of(one: Ours | Model, metric: str) -> object:
    return points(one.readers[0], metric)


def test_a_disabled_meter_says_so() -> None:
    made = provider([reader(TEMPORALITIES[0])]).get_meter("any").create_histogram(DURATION)
    if not hasattr(made, "_meter_config"):
        pytest.skip("this SDK disables no meters")
    assert made._is_enabled() is True


def test_no_reader_collects_while_another_one_asks_a_callback() -> None:
    """Else an aggregation could be taken away between its making and what is added to it."""
    first = InMemoryMetricReader()
    second = InMemoryMetricReader()
    collected = threading.Event()
    inside = threading.Event()
    held: list[bool] = []

    def callback(_options: CallbackOptions) -> list[Observation]:
        if threading.current_thread() is threading.main_thread():
            other.start()
            inside.wait(0.05)
            held.append(not collected.is_set())
        return []

    def collect() -> None:
        second.collect()
        collected.set()

    other = threading.Thread(target=collect)
    provider([first, second]).get_meter("guard").create_observable_counter("any", [callback])
    first.collect()
    other.join(PATIENCE_S)
    assert held == [True]
