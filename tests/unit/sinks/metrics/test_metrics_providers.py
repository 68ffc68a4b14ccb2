"""Meter providers that are there early, late, or not; that are replaced, raise, or are of
another SDK; the counters in them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from measured_metrics import (
    ADD,
    TEMPORALITIES,
    Counted,
    Ours,
    batch_of,
    counts,
    points,
    provider,
    reader,
    values,
    view,
)
from opentelemetry import metrics as api

from otel_recfn.sinks.metrics import sdk_streams
from otel_recfn.sinks.metrics.instruments import DURATION
from otel_recfn.sinks.metrics.sink import MetricsSink

pytestmark = pytest.mark.one_python
DELTA, CUMULATIVE = TEMPORALITIES


@pytest.fixture
def global_provider(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Sets what the global meter provider is."""

    def set_provider(given: Any) -> None:
        monkeypatch.setattr(api, "get_meter_provider", lambda: given)

    return set_provider


class TestProviders:
    def test_without_one_nothing_is_summed_up(self) -> None:
        sink = MetricsSink()
        sink.write(batch_of([("aten::add", 0, 1)]))
        assert sink.take() == []

    @pytest.mark.parametrize(
        ("aggregation", "wanted"), [("default", True), ("sum", True), ("drop", False)]
    )
    def test_what_is_not_sampled_is_wanted_where_durations_are(
        self, aggregation: str, wanted: bool
    ) -> None:
        ours = Ours([reader(DELTA)], views=view(aggregation))
        ours.record([("aten::add", 0, 1)])
        assert ours.sink.wants_unsampled is wanted
        assert MetricsSink(api.NoOpMeterProvider()).wants_unsampled is False

    def test_a_disabled_sdk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        ours = Ours([reader(DELTA)])
        ours.record([("aten::add", 0, 1)])
        assert ours.sink.take() == []

    def test_one_that_is_set_later(self, global_provider: Callable[[Any], None]) -> None:
        global_provider(api._internal._ProxyMeterProvider())
        sink = MetricsSink()
        late = reader(DELTA)
        sink.write(batch_of([("aten::add", 0, 1)]))
        global_provider(provider([late]))
        sink.write(batch_of([("aten::add", 0, 1)] * 3))
        assert counts(late) == {ADD: 3}

    def test_one_that_is_replaced_gets_what_was_before(
        self, global_provider: Callable[[Any], None]
    ) -> None:
        first = reader(DELTA)
        second = reader(DELTA)
        kept = provider([first])
        global_provider(kept)
        sink = MetricsSink()
        sink.write(batch_of([("aten::add", 0, 1)] * 2))
        global_provider(provider([second]))
        sink.write(batch_of([("aten::add", 0, 1)] * 3))
        assert (counts(first), counts(second)) == ({ADD: 2}, {ADD: 3})

    def test_one_that_raises_costs_metrics_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        class Raises(api.MeterProvider):
            def get_meter(self, *_: Any, **__: Any) -> Any:
                raise OSError("no meters")

        sink = MetricsSink(Raises())
        for _ in range(2):
            sink.write(batch_of([("aten::add", 0, 1)]))
        assert sink.take() == []
        assert [record.message for record in caplog.records] == [
            "otel-recfn: the meter provider raised; there are no metrics of operators"
        ]

    def test_a_provider_that_is_gone_is_not_kept(self) -> None:
        ours = Ours([reader(DELTA)])
        ours.record([("aten::add", 0, 1)])
        ours.sink.close(0.0)
        gone = weakref.ref(ours.provider)
        del ours
        gc.collect()
        assert gone() is None


class Foreign(api.MeterProvider):
    """Another implementation: it knows the API alone."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    def get_meter(self, *_: Any, **__: Any) -> Any:
        return ForeignMeter("foreign", self.callbacks)


class ForeignMeter(api.NoOpMeter):
    __class__ = api.Meter  # type: ignore[assignment]

    def __init__(self, name: str, callbacks: dict[str, Any]) -> None:
        super().__init__(name)
        self.callbacks = callbacks

    def create_observable_counter(
        self, name: str, callbacks: Any = None, *_: Any, **__: Any
    ) -> Any:
        self.callbacks[name] = callbacks[0]


class TestOtherSdks:
    """There is no histogram."""

    def test_a_foreign_provider(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "otel_recfn.sinks.metrics.instruments.NoOpMeter", type("Nothing", (), {})
        )
        given = Foreign()
        sink = MetricsSink(given)
        for _ in range(2):
            sink.write(batch_of([("aten::add", 0, 1_500), ("aten::mm", 0, 7)]))
            list(given.callbacks["recfn.ranges"](api.CallbackOptions()))
        assert sink.take() == []
        assert sink.wants_unsampled is False
        assert [DURATION in record.message for record in caplog.records] == [True]

    def test_an_aggregation_that_has_changed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Another SDK calls its aggregation so.
        monkeypatch.setattr(sdk_streams, "_EXPLICIT", "_Renamed")
        ours = Ours([reader(DELTA)])
        ours.record([("aten::add", 0, 1), ("aten::add", 0, 4)])
        assert points(ours.readers[0]) == {}
        assert "an unknown aggregation" in caplog.text

    def test_after_a_detail_that_has_changed_no_more_durations_are_taken(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        ours = Ours([reader(DELTA)])
        ours.record([("aten::add", 0, 1)])
        assert ours.sink.wants_unsampled
        # Something of the SDK's raises where it doesn't in this one.
        monkeypatch.setattr(sdk_streams, "_key", None)
        assert points(ours.readers[0]) is not None
        assert [DURATION in record.message for record in caplog.records] == [True]
        assert not ours.sink.wants_unsampled


class TestCounters:
    def test_what_became_of_ranges_and_spans(self, ours: Ours) -> None:
        counted = Counted()
        ours.sink.report_from(counted)
        counted.set(
            exported=10,
            unsampled=5,
            dropped__buffer_full=1,
            dropped__queue_full=3,
            chrome_trace__dropped__error=2,
        )
        one = ours.readers[0]
        assert values(one, "recfn.ranges") == {"exported": 10, "unsampled": 5, "dropped": 4}
        lost = {"dropped.buffer_full": 1, "dropped.queue_full": 3, "chrome_trace.dropped.error": 2}
        assert values(one, "recfn.lost") == lost
        counted.set(exported=11, folded=90, failed=1)
        assert values(one, "recfn.ranges") == {
            "exported": 11,
            "folded": 90,
            "unsampled": 5,
            "failed": 1,
            "dropped": 4,
        }
        assert values(one, "recfn.lost") == {**lost, "failed": 1}

    def test_what_waits(self, ours: Ours) -> None:
        ours.sink.report_from(Counted(waiting=3))
        assert values(ours.readers[0], "recfn.queue.size") == {"spans": 3}

    @pytest.mark.parametrize("temporality", TEMPORALITIES)
    def test_they_never_go_back_from_one_capture_to_the_next(self, temporality: Any) -> None:
        ours = Ours([reader(temporality)])
        told = []
        for spans in (10, 4, 7):
            counted = Counted()
            sink = MetricsSink(ours.provider)
            sink.report_from(counted)
            counted.set(exported=spans)
            sink.write(batch_of([("aten::add", 0, 1)] * spans))
            sink.close(0.0)
            found = counts(ours.readers[0])
            told.append((values(ours.readers[0], "recfn.ranges").get("exported", 0), found[ADD]))
        assert [count for _, count in told] == (
            [10, 4, 7] if temporality == DELTA else [10, 14, 21]
        )

    def test_sums_that_are_left_reach_the_readers(self, ours: Ours) -> None:
        ours.record([("aten::add", 0, 1)] * 4)
        ours.sink.close(0.0)
        ours.sink.close(0.0)
        assert counts(ours.readers[0]) == {ADD: 4}
        assert counts(ours.readers[0]) == {ADD: 4}
