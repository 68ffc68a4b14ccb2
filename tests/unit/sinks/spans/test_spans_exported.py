"""Spans on their way to exporters: what they took, refused or never got, and exporters that
change.
"""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from spans_harness import REQUEST, Gated, Harness, assert_balanced, spans_sink

from helpers.batches import make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.sinks.spans.sink import SpansSink


def new_provider(*exporters: SpanExporter, **options: Any) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter, **options))
    return provider


def in_request(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"context": REQUEST, "event_id": first + number} for number in range(count)]


class TestExporting:
    def test_nothing_is_dropped_by_a_short_queue(self) -> None:
        exporter = Gated(is_open=True)
        provider = new_provider(exporter, max_queue_size=40, max_export_batch_size=40)
        sink = spans_sink(provider)
        sink.write(make_batch(in_request(205)))
        sink.close(PATIENCE_S)
        assert max(map(len, exporter.batches)) <= 20
        assert len(exporter.spans) == 205
        assert sink.counters()["exported"] == 205
        provider.shutdown()

    def test_spans_of_the_program_are_not_counted(self) -> None:
        exporter = Gated(is_open=True)
        provider = new_provider(exporter)
        sink = spans_sink(provider)
        sink.write(make_batch(in_request(2)))
        provider.get_tracer("program").start_span("own").end()
        sink.flush(PATIENCE_S)
        assert len(exporter.spans) == 3
        assert sink.counters()["exported"] == 2
        sink.close(PATIENCE_S)
        provider.shutdown()

    def test_provider_that_was_shut_down(self) -> None:
        provider = new_provider(Gated(is_open=True))
        provider.shutdown()
        sink = spans_sink(provider)
        sink.write(make_batch(in_request(2)))
        assert not sink.flush(1)
        assert_balanced(sink.counters())

    @pytest.mark.parametrize("error", [OSError("no"), SystemExit(3)], ids=repr)
    def test_an_exporter_that_raises_in_a_flush_gets_the_next_spans(
        self, error: BaseException
    ) -> None:
        provider = new_provider(exporter := Gated(error, is_open=True))
        sink = spans_sink(provider)
        for first in (1, 10):
            sink.write(make_batch(in_request(2, first=first)))
            sink.flush(PATIENCE_S)
            exporter.result = SpanExportResult.SUCCESS
        counters = sink.counters()
        assert (counters["exported"], len(exporter.spans)) == (4, 4)
        assert_balanced(counters)
        provider.shutdown()

    def test_processor_that_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                raise KeyError("processor")

        harness = Harness()
        harness.provider.add_span_processor(Broken())
        assert len(harness.write(*in_request(3))) == 3
        assert [record.getMessage() for record in caplog.records] == [
            "otel-recfn: a span processor raised in on_end"
        ]

    def test_one_that_raises_keeps_spans_from_no_other(self) -> None:
        class Broken(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                raise KeyError("processor")

        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(Broken())
        provider.add_span_processor(BatchSpanProcessor(exporter := Gated(is_open=True)))
        sink = spans_sink(provider)
        sink.write(make_batch(in_request(3)))
        assert sink.flush(PATIENCE_S)
        assert len(exporter.spans) == 3
        provider.shutdown()

    def test_processors_are_called_as_the_sdk_calls_them(self) -> None:
        """Not while instrumentation is suppressed, as one may pass on nothing then; an exporter
        is called so.
        """
        enabled = []

        class Asks(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                enabled.append(is_instrumentation_enabled())

            def force_flush(self, timeout_millis: int = 30_000) -> bool:
                enabled.append(is_instrumentation_enabled())
                return True

        harness = Harness()
        harness.provider.add_span_processor(Asks())
        harness.write(*in_request(3))
        assert enabled == [True] * 4

    def test_forked_child_gets_a_fresh_sink(self) -> None:
        provider = new_provider(Gated(is_open=True))
        sink = spans_sink(provider)
        sink.write(make_batch(in_request(1)))
        fresh = sink.after_fork_in_child()
        assert isinstance(fresh, SpansSink)
        assert set(fresh.counters().values()) == {0}
        provider.shutdown()
