"""The metrics sink: providers early, late, of others, and gone; series beyond the bound; counters; exemplars; forks."""

from __future__ import annotations

import gc
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from measured import TEMPORALITIES, Ours, batch_of, metrics_of, points, provider, reader, view
from opentelemetry import metrics as api
from opentelemetry import trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batches import context, make_batch
from forked import fork, in_child
from otel_recfn.model.events import EventFlag, EventKind
from otel_recfn.sinks.metrics import instruments, sdk_streams
from otel_recfn.sinks.metrics.instruments import DURATION
from otel_recfn.sinks.metrics.pipeline import ROW_BYTES, Report
from otel_recfn.sinks.metrics.sent_spans import SentSpans
from otel_recfn.sinks.metrics.sink import MetricsSink
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.support import own_thread
from patience import PATIENCE_S

DELTA, CUMULATIVE = TEMPORALITIES
ADD = (("recfn.name", "aten::add"), ("recfn.scope", "FUNCTION"))
OVERFLOW = (("otel.metric.overflow", True),)


@pytest.fixture
def ours() -> Ours:
    return Ours([reader(CUMULATIVE)])


@pytest.fixture
def global_provider(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Sets what the global meter provider is."""

    def set_provider(given: Any) -> None:
        monkeypatch.setattr(api, "get_meter_provider", lambda: given)

    return set_provider


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
        return Report(self.counters, {name: count for name, count in self.counters.items() if "dropped" in name})


class TestWhatCounts:
    def test_ranges_that_have_ended(self, ours: Ours) -> None:
        rows = [
            {"name": "aten::add"},
            {"name": "mark", "kind": EventKind.MARK},
            {"name": "open", "flags": EventFlag.PARTIAL},
            {"name": "turned", "start_ns": 10, "end_ns": 5},
        ]
        ours.sink.write(make_batch(rows))
        found = points(ours.readers[0])
        assert set(found) == {ADD, (("recfn.name", "turned"), ("recfn.scope", "FUNCTION"))}
        assert found[ADD]["total"] == 500e-9
        told = {"rows": 4, "counted": 2, "other_kinds": 1, "partial": 1, "overflowed": 0, "unasked": 0, "failed": 0}
        assert ours.sink.counters() == told

    def test_a_name_that_utf8_can_not_hold(self, ours: Ours) -> None:
        ours.record([("bad \ud800", 0, 1)])
        assert list(points(ours.readers[0])) == [(("recfn.name", "bad \\ud800"), ("recfn.scope", "FUNCTION"))]

    def test_series_beyond_the_bound_are_one_and_counted(self) -> None:
        ours = Ours([reader(CUMULATIVE)], max_series=3)
        for first in (0, 5):
            ours.record([(f"op {n}", 0, 100) for n in range(first, first + 10)])
            found = counts(ours.readers[0])
        assert len(found) == 4
        assert found[OVERFLOW] == 20 - 3
        assert ours.sink.counters()["overflowed"] == 20 - 3

    def test_the_bound_of_the_sdk_holds_too(self) -> None:
        if "aggregation_cardinality_limit" not in inspect.signature(View).parameters:
            pytest.skip("this SDK has no bound")
        ours = Ours([reader(DELTA)], views=view("explicit", aggregation_cardinality_limit=2))
        for _ in range(2):
            ours.record([(f"op {n}", 0, 100 + n) for n in range(10)])
            found = counts(ours.readers[0])
            assert sum(found.values()) == 10
            assert found[OVERFLOW] == 8

    def test_names_that_change_all_the_time_take_bounded_memory(self) -> None:
        ours = Ours([reader(DELTA)], max_series=10)
        for step in range(200):
            ours.record([(f"step {step}", 7, 1), ("aten::add", 0, 1)])
        found = counts(ours.readers[0])
        assert sum(found.values()) == 400
        assert found[ADD] == 200
        assert len(found) == 11


class TestProviders:
    def test_without_one_nothing_is_summed_up(self) -> None:
        sink = MetricsSink()
        sink.write(batch_of([("aten::add", 0, 1)]))
        assert sink.take() == []
        assert sink.counters()["unasked"] == sink.counters()["rows"] == 1

    @pytest.mark.parametrize("given", [api.NoOpMeterProvider(), MeterProvider(shutdown_on_exit=False)])
    def test_one_that_nobody_reads(self, given: Any) -> None:
        sink = MetricsSink(given)
        sink.write(batch_of([("aten::add", 0, 1)]))
        assert sink.counters()["unasked"] == 1

    @pytest.mark.parametrize(("aggregation", "wanted"), [("default", True), ("sum", True), ("drop", False)])
    def test_what_is_not_sampled_is_wanted_where_durations_are(self, aggregation: str, wanted: bool) -> None:
        ours = Ours([reader(DELTA)], views=view(aggregation))
        ours.record([("aten::add", 0, 1)])
        assert ours.sink.wants_unsampled is wanted
        assert MetricsSink(api.NoOpMeterProvider()).wants_unsampled is False

    def test_a_disabled_sdk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        ours = Ours([reader(DELTA)])
        ours.record([("aten::add", 0, 1)])
        assert ours.sink.counters()["unasked"] == 1

    def test_a_view_that_drops_the_histogram(self) -> None:
        ours = Ours([reader(DELTA)], views=view("drop"))
        ours.record([("aten::add", 0, 1)])
        assert ours.sink.counters()["unasked"] == 1

    def test_one_that_is_set_later(self, global_provider: Callable[[Any], None]) -> None:
        global_provider(api._internal._ProxyMeterProvider())
        sink, late = MetricsSink(), reader(DELTA)
        sink.write(batch_of([("aten::add", 0, 1)]))
        global_provider(provider([late]))
        sink.write(batch_of([("aten::add", 0, 1)] * 3))
        assert counts(late) == {ADD: 3}
        assert sink.counters()["unasked"] == 1

    def test_one_that_is_replaced_gets_what_was_before(self, global_provider: Callable[[Any], None]) -> None:
        first, second = reader(DELTA), reader(DELTA)
        kept = provider([first])
        global_provider(kept)
        sink = MetricsSink()
        sink.write(batch_of([("aten::add", 0, 1)] * 2))
        global_provider(provider([second]))
        sink.write(batch_of([("aten::add", 0, 1)] * 3))
        assert (counts(first), counts(second)) == ({ADD: 2}, {ADD: 3})

    def test_a_reader_that_is_added_later_begins_there(self, ours: Ours) -> None:
        if not hasattr(ours.provider, "add_metric_reader"):
            pytest.skip("this SDK can't add readers")
        ours.record([("aten::add", 0, 1)] * 2)
        late = InMemoryMetricReader()
        ours.provider.add_metric_reader(late)
        ours.record([("aten::add", 0, 1)] * 3)
        assert counts(late) == {ADD: 3}
        assert counts(ours.readers[0]) == {ADD: 5}

    def test_one_that_raises_costs_metrics_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        class Raises(api.MeterProvider):
            def get_meter(self, *_: Any, **__: Any) -> Any:
                raise OSError("no meters")

        sink = MetricsSink(Raises())
        for _ in range(2):
            sink.write(batch_of([("aten::add", 0, 1)]))
        assert sink.counters()["unasked"] == 2
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

    def create_observable_counter(self, name: str, callbacks: Any = None, *_: Any, **__: Any) -> Any:
        self.callbacks[name] = callbacks[0]


class TestOtherSdks:
    """Without histograms there are exact counts and times."""

    def totals(self, callbacks: Mapping[str, Any]) -> dict[str, Any]:
        options = api.CallbackOptions()
        list(callbacks["recfn.ranges"](options))
        return {
            suffix: [(each.value, each.attributes["recfn.name"]) for each in callbacks[f"{DURATION}.{suffix}"](options)]
            for suffix in ("count", "total")
        }

    def test_a_foreign_provider(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("otel_recfn.sinks.metrics.meters.NoOpMeter", type("Nothing", (), {}))
        given = Foreign()
        sink = MetricsSink(given)
        for _ in range(2):
            sink.write(batch_of([("aten::add", 0, 1_500), ("aten::mm", 0, 7)]))
            totals = self.totals(given.callbacks)
        assert totals == {"count": [(2, "aten::add"), (2, "aten::mm")], "total": [(3e-6, "aten::add"), (1.4e-8, "aten::mm")]}
        assert [f"{DURATION}.count" in record.message for record in caplog.records] == [True]

    def test_an_aggregation_that_has_changed(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        fields = dict.fromkeys(sdk_streams._FIELDS, ("_lock", "_renamed"))
        monkeypatch.setattr(sdk_streams, "_FIELDS", fields)
        ours = Ours([reader(DELTA)])
        ours.record([("aten::add", 0, 1), ("aten::add", 0, 4)])
        data = ours.readers[0].get_metrics_data()
        found = {each.name: [point.value for point in each.data.data_points] for each in metrics_of(data)}
        assert found[f"{DURATION}.count"] == [2]
        assert found[f"{DURATION}.total"] == [5e-9]
        assert "_renamed" in caplog.text

    def test_one_that_fails_in_the_middle(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("changed")

        ours = Ours([reader(DELTA)])
        with monkeypatch.context() as patch:
            patch.setitem(sdk_streams._ADD, "_ExplicitBucketHistogramAggregation", fail)
            ours.record([("aten::add", 0, 1)] * 5)
            ours.readers[0].get_metrics_data()
        assert ours.sink.counters()["failed"] == 5
        ours.record([("aten::add", 0, 1)] * 3)
        assert [each["total"] for each in points(ours.readers[0], f"{DURATION}.count").values()] == [3]
        assert len(caplog.records) == 1

    def test_one_that_finds_no_memory_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise MemoryError

        ours = Ours([reader(DELTA)])
        with monkeypatch.context() as patch:
            patch.setitem(sdk_streams._ADD, "_ExplicitBucketHistogramAggregation", fail)
            ours.record([("aten::add", 0, 1)] * 5)
            ours.readers[0].get_metrics_data()
        assert ours.sink.counters()["failed"] == 5
        ours.record([("aten::add", 0, 1)] * 3)
        assert counts(ours.readers[0]) == {ADD: 3}


class TestCounters:
    def test_what_became_of_ranges_and_spans(self, ours: Ours) -> None:
        counted = Counted()
        ours.sink.report_from(counted)
        unsampled = {"spans__unsampled": 3, "recorder__unsampled": 2}
        counted.set(spans__spans=12, spans__roots=2, recorder__dropped=1, spans__queue_dropped=3, **unsampled)
        one = ours.readers[0]
        assert values(one, "recfn.ranges") == {"span": 10, "unsampled": 5, "dropped": 4}
        assert values(one, "recfn.lost") == {"recorder.dropped": 1, "spans.queue_dropped": 3}
        counted.set(spans__spans=12, spans__roots=2, spans__folded=90, spans__spans_exported=11, spans__spans_failed=1)
        assert values(one, "recfn.ranges") == {"span": 10, "folded": 90, "unsampled": 5, "dropped": 4}
        assert values(one, "recfn.spans") == {"exported": 11, "failed": 1}

    def test_what_waits(self, ours: Ours) -> None:
        ours.sink.report_from(Counted(spans__queued=7, spans__spans_pending=3))
        one = ours.readers[0]
        assert values(one, "recfn.queue.ranges") == {"spans": 7}
        assert values(one, "recfn.queue.bytes") == {"spans": 7 * ROW_BYTES}
        assert values(one, "recfn.queue.spans") == {"exporters": 3}

    def test_what_was_before_does_not_count(self, ours: Ours) -> None:
        counted = Counted(recorder__dropped=100)
        ours.sink.report_from(counted)
        counted.set(recorder__dropped=103)
        assert values(ours.readers[0], "recfn.lost") == {"recorder.dropped": 3}

    @pytest.mark.parametrize("temporality", TEMPORALITIES)
    def test_they_never_go_back_from_one_capture_to_the_next(self, temporality: Any) -> None:
        ours = Ours([reader(temporality)])
        told = []
        for spans in (10, 4, 7):
            counted = Counted()
            sink = MetricsSink(ours.provider)
            sink.report_from(counted)
            counted.set(spans__spans=spans)
            sink.write(batch_of([("aten::add", 0, 1)] * spans))
            sink.close(0.0)
            assert sink.counters()["counted"] == spans
            found = counts(ours.readers[0])
            told.append((values(ours.readers[0], "recfn.ranges").get("span", 0), found[ADD]))
        assert [count for _, count in told] == ([10, 4, 7] if temporality == DELTA else [10, 14, 21])

    def test_a_capture_that_ended_is_not_kept(self, ours: Ours) -> None:
        counted = Counted()
        sink = MetricsSink(ours.provider)
        sink.report_from(counted)
        counted.set(spans__spans=3)
        sink.close(0.0)
        gone = weakref.ref(counted), weakref.ref(sink)
        del counted, sink
        gc.collect()
        assert [one() for one in gone] == [None, None]
        assert values(ours.readers[0], "recfn.ranges") == {"span": 3, "dropped": 0}
        assert values(ours.readers[0], "recfn.queue.ranges") == {}

    def test_counters_that_raise_are_told_once_and_cost_nothing_else(
        self, ours: Ours, caplog: pytest.LogCaptureFixture
    ) -> None:
        def report() -> Report:
            raise OSError("no counters")

        ours.sink.report_from(report)
        ours.record([("aten::add", 0, 1)])
        assert counts(ours.readers[0]) == {ADD: 1}
        assert counts(ours.readers[0]) == {ADD: 1}
        assert len(caplog.records) == 1

    def test_sums_that_are_left_reach_the_readers(self, ours: Ours) -> None:
        ours.record([("aten::add", 0, 1)] * 4)
        ours.sink.close(0.0)
        ours.sink.close(0.0)
        assert counts(ours.readers[0]) == {ADD: 4}
        assert counts(ours.readers[0]) == {ADD: 4}


class TestExemplars:
    def spans(self, sent: SentSpans) -> tuple[SpansSink, InMemorySpanExporter]:
        exporter = InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        return SpansSink(tracers, sent=sent.note), exporter

    def exemplars(self, one: InMemoryMetricReader) -> list[Any]:
        found = [each for each in metrics_of(one.get_metrics_data()) if each.name == DURATION]
        return [exemplar for each in found for point in each.data.data_points for exemplar in point.exemplars]

    def rows(self, flags: int = 1) -> Any:
        return make_batch(
            [
                {"name": "aten::add", "start_ns": 5, "end_ns": 5 + ns, "context": context(0xABC, 0xDEF, flags)}
                for ns in (100, 900, 300)
            ]
        )

    @pytest.mark.parametrize("aggregation", ["default", "exponential"])
    def test_the_longest_span_that_was_sent(self, aggregation: str) -> None:
        sent = SentSpans()
        ours, (spans, exporter) = Ours([reader(DELTA)], views=view(aggregation)), self.spans(sent)
        ours.sink = MetricsSink(ours.provider, sent)
        batch = self.rows()
        ours.sink.write(batch)
        spans.write(batch)
        [exemplar] = self.exemplars(ours.readers[0])
        [longest] = [one for one in exporter.get_finished_spans() if one.end_time - one.start_time == 900]
        assert (exemplar.trace_id, exemplar.span_id) == (0xABC, longest.context.span_id)
        assert (exemplar.value, exemplar.time_unix_nano) == (900e-9, 905)
        assert self.exemplars(ours.readers[0]) == []

    @pytest.mark.parametrize("written", [False, True])
    def test_none_of_spans_that_were_not_sent(self, written: bool) -> None:
        sent = SentSpans()
        ours, (spans, exporter) = Ours([reader(DELTA)]), self.spans(sent)
        ours.sink = MetricsSink(ours.provider, sent)
        batch = self.rows(flags=0)
        ours.sink.write(batch)
        if written:
            spans.write(batch)
        assert exporter.get_finished_spans() == ()
        assert self.exemplars(ours.readers[0]) == []

    def test_none_where_the_filter_wants_none(self) -> None:
        sent = SentSpans()
        ours, (spans, _) = Ours([reader(DELTA)], exemplar_filter=AlwaysOffExemplarFilter()), self.spans(sent)
        ours.sink = MetricsSink(ours.provider, sent)
        ours.sink.write(self.rows())
        spans.write(self.rows())
        assert self.exemplars(ours.readers[0]) == []

    def test_nothing_is_noted_without_a_meter_provider(self) -> None:
        sent = SentSpans()
        spans, _ = self.spans(sent)
        MetricsSink(None, sent).write(self.rows())
        spans.write(self.rows())
        assert sent.take() == {}


class TestForks:
    def test_a_child_counts_its_own(self, ours: Ours) -> None:
        counted = Counted()
        ours.sink.report_from(counted)
        counted.set(spans__spans=5)
        ours.record([("aten::add", 0, 1)] * 5)
        assert values(ours.readers[0], "recfn.ranges")["span"] == 5
        ours.record([("aten::add", 0, 1)] * 50)

        def work() -> None:
            fresh = ours.sink.after_fork_in_child()
            assert fresh is not None
            counted.set(spans__spans=2)
            fresh.write(batch_of([("aten::add", 0, 1)] * 3))
            found = counts(ours.readers[0])
            assert found == {ADD: 8}, found
            assert values(ours.readers[0], "recfn.ranges")["span"] == 5 + 2

        in_child(work)
        assert counts(ours.readers[0]) == {ADD: 55}

    def test_a_fork_waits_for_a_callback(self, ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
        inside, forked, waited = threading.Event(), threading.Event(), []
        hand = instruments.Instruments._hand

        def slow(*arguments: Any) -> None:
            inside.set()
            waited.append(not forked.wait(0.1))
            hand(*arguments)

        monkeypatch.setattr(instruments.Instruments, "_hand", slow)
        ours.record([("aten::add", 0, 1)] * 5)
        collecting = threading.Thread(target=ours.readers[0].collect)
        collecting.start()
        assert inside.wait(PATIENCE_S)
        child = fork(partial(self.write_in_child, ours))
        forked.set()
        collecting.join(PATIENCE_S)
        assert waited == [True]
        assert os.waitpid(child, 0)[1] == 0

    def write_in_child(self, ours: Ours) -> None:
        """Whatever lock of the SDK the reader's thread held."""
        fresh = ours.sink.after_fork_in_child()
        assert fresh is not None
        fresh.write(batch_of([("aten::add", 0, 1)] * 3))
        assert fresh.counters()["counted"] == 3

    def test_a_callback_tells_nothing_while_somebody_forks(self, ours: Ours) -> None:
        found: list[dict[Any, int]] = []

        def collect() -> None:
            found.append(counts(ours.readers[0]))

        ours.record([("aten::add", 0, 1)] * 5)
        own_thread._gate.close(0.0)
        try:
            collecting = threading.Thread(target=collect)
            collecting.start()
            collecting.join(PATIENCE_S)
        finally:
            own_thread._gate.open()
        collect()
        assert found == [{}, {ADD: 5}]


def test_nothing_is_lost_while_readers_collect_and_rows_come() -> None:
    ours = Ours([reader(DELTA), reader(DELTA), reader(CUMULATIVE)], views=view("exponential"))
    stop, seen = threading.Event(), [0, 0]

    def collect(which: int) -> None:
        while not stop.is_set():
            seen[which] += sum(counts(ours.readers[which]).values())

    threads = [threading.Thread(target=collect, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for step in range(300):
        ours.record([("aten::add", 0, step), (f"op {step % 7}", 0, 10_000 * step)])
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    rest = [sum(counts(one).values()) for one in ours.readers]
    assert [seen[0] + rest[0], seen[1] + rest[1], rest[2]] == [600, 600, 600]


def test_a_signal_handler_that_collects_amid_a_batch_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from otel_recfn.sinks.metrics import durations

    ours = Ours([reader(DELTA)])
    ours.record([("aten::add", 0, 1)])
    found = []
    add = durations.add_durations

    def interrupted(*arguments: Any) -> None:
        found.append(counts(ours.readers[0]))
        add(*arguments)

    monkeypatch.setattr(durations, "add_durations", interrupted)
    ours.record([("aten::add", 0, 1)] * 4)
    assert found == [{}]
    assert counts(ours.readers[0]) == {ADD: 5}


def test_the_program_s_span_is_not_an_exemplar(ours: Ours) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    with tracer.start_as_current_span("handler"), trace.use_span(trace.get_current_span()):
        ours.record([("aten::add", 0, 1)])
        found = [each for each in metrics_of(ours.readers[0].get_metrics_data()) if each.name == DURATION]
    assert [point.exemplars for each in found for point in each.data.data_points] == [[]]
