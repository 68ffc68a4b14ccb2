"""What we read of the SDK's metrics without its promise. A failure here says which part moved, before users lose histograms."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from measured import AGGREGATIONS, Ours, provider, reader, view
from opentelemetry.metrics import CallbackOptions, NoOpMeter
from opentelemetry.metrics import _internal as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal import aggregation as sdk
from opentelemetry.sdk.metrics._internal.exponential_histogram.buckets import Buckets
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from otel_recfn.sinks.metrics import sdk_streams
from otel_recfn.sinks.metrics.instruments import BOUNDS, DURATION
from otel_recfn.sinks.metrics.sdk_streams import SdkStreams
from patience import PATIENCE_S

DELTA = AggregationTemporality.DELTA


def histogram(given: MeterProvider) -> Any:
    return given.get_meter("guard").create_histogram(DURATION, "s", explicit_bucket_boundaries_advisory=BOUNDS)


def test_a_histogram_leads_to_what_each_reader_keeps() -> None:
    one = reader(DELTA)
    made = histogram(provider([one]))
    [(of_reader, storage)] = made._measurement_consumer._reader_storages.items()
    assert of_reader is one
    [match] = storage._get_or_init_view_instrument_match(made)
    assert match._attributes_aggregation == {}
    made.record(1.0, {"a": 1})
    [aggregation] = match._attributes_aggregation.values()
    assert aggregation._attributes == {"a": 1}
    assert match._view._attribute_keys is None
    assert type(match._aggregation) is type(aggregation)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregations_have_the_fields_that_are_read(aggregation: str) -> None:
    streams = SdkStreams(histogram(provider([reader(DELTA)], views=view(aggregation))))
    assert streams.asked == (aggregation != "drop")


def test_each_aggregation_that_is_known_is_one_of_the_sdk() -> None:
    assert all(hasattr(sdk, name) for name in sdk_streams._FIELDS)


def test_bounds_that_the_instrument_advises_are_taken() -> None:
    assert SdkStreams(histogram(provider([reader(DELTA)])))._bounds == [BOUNDS]


def test_buckets_are_made_from_their_fields() -> None:
    buckets = Buckets()
    buckets._counts = [1, 0, 2]
    buckets.index_base = buckets.index_start = -4
    buckets.index_end = -2
    assert (buckets.offset, list(buckets.get_offset_counts()), len(buckets)) == (-4, [1, 0, 2], 3)


def test_exemplar_filters_and_reservoirs_are_where_they_were() -> None:
    made = histogram(provider([reader(DELTA)]))
    assert callable(made._measurement_consumer._sdk_config.exemplar_filter.should_sample)
    assert callable(sdk._Aggregation._sample_exemplar)


def test_a_disabled_meter_says_so() -> None:
    made = histogram(provider([reader(DELTA)]))
    if not hasattr(made, "_meter_config"):
        pytest.skip("this SDK disables no meters")
    assert made._is_enabled() is True


def test_the_global_provider_is_a_proxy_until_it_is_set() -> None:
    assert isinstance(api._PROXY_METER_PROVIDER, api._ProxyMeterProvider)


def test_a_provider_that_was_shut_down_gives_meters_that_do_nothing() -> None:
    given = provider([reader(DELTA)])
    given.shutdown()
    assert isinstance(given.get_meter("guard"), NoOpMeter)


def test_an_instrument_that_is_made_again_takes_no_second_callback() -> None:
    one, asked = reader(DELTA), []

    def callback(options: CallbackOptions) -> list[Any]:
        asked.append(options)
        return []

    meter = provider([one]).get_meter("guard")
    for _ in range(2):
        meter.create_observable_counter("recfn.ranges", [callback], "{range}", "")
    one.get_metrics_data()
    assert len(asked) == 1


def test_no_reader_collects_while_another_one_asks_a_callback() -> None:
    """Else an aggregation could be taken away between its making and what is added to it."""
    first, second = InMemoryMetricReader(), InMemoryMetricReader()
    collected, inside = threading.Event(), threading.Event()
    held: list[bool] = []

    def callback(_options: CallbackOptions) -> list[Any]:
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


def test_a_sink_finds_them_all() -> None:
    ours = Ours([reader(DELTA)], views=[*view("exponential"), *view("explicit"), *view("sum"), *view("last")])
    ours.record([("a", 0, 1)])
    [taken], _ = ours.sink.take()
    assert len(taken.sums.buckets) == 2
