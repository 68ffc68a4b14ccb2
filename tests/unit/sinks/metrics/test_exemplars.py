"""The spans that a duration leads to."""

from __future__ import annotations

from typing import Any

import pytest
from measured import TEMPORALITIES, Ours, metrics_of, reader, view
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batches import context, make_batch
from otel_recfn.sinks.metrics.instruments import DURATION
from otel_recfn.sinks.metrics.sink import MetricsSink, SentSpans
from otel_recfn.sinks.spans.sink import Process, SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

DELTA, CUMULATIVE = TEMPORALITIES


class TestExemplars:
    def spans(self, sent: SentSpans) -> tuple[SpansSink, InMemorySpanExporter]:
        exporter = InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        return SpansSink(tracers, process=Process(sent=sent.note)), exporter

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
        spans.close(PATIENCE_S)
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
        spans.close(PATIENCE_S)
        assert exporter.get_finished_spans() == ()
        assert self.exemplars(ours.readers[0]) == []

    def test_none_where_the_filter_wants_none(self) -> None:
        sent = SentSpans()
        ours, (spans, _) = Ours([reader(DELTA)], exemplar_filter=AlwaysOffExemplarFilter()), self.spans(sent)
        ours.sink = MetricsSink(ours.provider, sent)
        ours.sink.write(self.rows())
        spans.write(self.rows())
        spans.close(PATIENCE_S)
        assert self.exemplars(ours.readers[0]) == []

    def test_nothing_is_noted_without_a_meter_provider(self) -> None:
        sent = SentSpans()
        spans, _ = self.spans(sent)
        MetricsSink(None, sent).write(self.rows())
        spans.write(self.rows())
        spans.close(PATIENCE_S)
        assert sent.take() == {}
