"""Programs whose tracer provider isn't the SDK's own: a proxy around it, or another vendor's."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function


class ProxyTracer(trace.Tracer):
    """A tracer that asks the proxy's provider each time, and shows nothing of the SDK's."""

    def __init__(self, proxy: ProxyProvider, name: str) -> None:
        self._proxy, self._name = proxy, name

    def start_span(self, *args: Any, **keywords: Any) -> trace.Span:
        return self._proxy.provider.get_tracer(self._name).start_span(*args, **keywords)

    start_as_current_span = trace.NoOpTracer.start_as_current_span


class ProxyProvider(trace.TracerProvider):
    """Has another provider, which is set when the program configures it, as logfire's."""

    def __init__(self) -> None:
        self.provider: trace.TracerProvider = trace.NoOpTracerProvider()

    def get_tracer(self, name: str, *args: Any, **keywords: Any) -> trace.Tracer:
        return ProxyTracer(self, name)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return isinstance(self.provider, TracerProvider) and self.provider.force_flush(
            timeout_millis
        )


class VendorsTracer(trace.Tracer):
    """Makes spans that the SDK knows nothing of."""

    def start_span(self, *args: Any, **keywords: Any) -> trace.Span:
        return trace.NonRecordingSpan(
            trace.SpanContext(7, 8, False, trace.TraceFlags(trace.TraceFlags.SAMPLED))
        )

    start_as_current_span = trace.NoOpTracer.start_as_current_span


class VendorsProvider(trace.TracerProvider):
    """Another vendor's, as ddtrace's."""

    def get_tracer(self, name: str, *args: Any, **keywords: Any) -> trace.Tracer:
        return VendorsTracer()


def request(provider: trace.TracerProvider) -> None:
    span = provider.get_tracer("program").start_span("request")
    with trace.use_span(span, end_on_exit=True), record_function("work"):
        pass


def test_a_proxy_is_looked_into_also_when_it_gets_another_provider(
    instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = ProxyProvider()
    instrumentor.instrument(tracer_provider=proxy)
    request(proxy)
    # What ran without a provider becomes spans of one that comes before the drain.
    instrumentor.flush(PATIENCE_S)
    for _ in range(2):
        exporter = InMemorySpanExporter()
        proxy.provider = provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
        request(proxy)
        assert proxy.force_flush()
        spans = exporter.get_finished_spans()
        [request_span] = [span for span in spans if span.name == "request"]
        # Beside this trace there may be one of what ran before there was a provider, if no drain
        # came until then.
        span_id = request_span.get_span_context().span_id
        below = [
            span.name
            for span in spans
            if span.parent is not None and span.parent.span_id == span_id
        ]
        assert below == ["work"]
        provider.shutdown()
    assert not caplog.messages


def test_beside_another_vendors_provider_one_line_names_the_ways_out(
    instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    provider = VendorsProvider()
    instrumentor.instrument(tracer_provider=provider)
    for _ in range(3):
        request(provider)
    assert instrumentor.flush(PATIENCE_S)
    [message] = [each for each in caplog.messages if "VendorsProvider" in each]
    assert "span_exporter=" in message
    assert "chrome_trace=" in message
    assert instrumentor.counters()["unsampled"] == 3


def test_beside_another_vendors_provider_spans_of_ours_go_by_span_exporter(
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = VendorsProvider()
    with OtlpServer("http") as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.endpoint)
        instrumentor.instrument(tracer_provider=provider, span_exporter="otlp-http")
        request(provider)
        assert instrumentor.flush(PATIENCE_S)
        [span] = server.spans
    assert (
        span.name,
        int.from_bytes(span.trace_id, "big"),
        int.from_bytes(span.parent_span_id, "big"),
    ) == ("work", 7, 8)
    assert not caplog.messages


def test_what_a_processor_runs_becomes_no_spans_that_it_would_run_for(
    instrumentor: OtelRecordFunctionInstrumentor,
) -> None:
    enabled = []

    class Works(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            enabled.append(is_instrumentation_enabled())
            with record_function("in the processor"):
                pass

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Works())
    provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    instrumentor.instrument(tracer_provider=provider, roots_per_second=None)
    tracer = provider.get_tracer("program")
    with tracer.start_as_current_span("request"), record_function("work"):
        pass
    for _ in range(3):
        assert instrumentor.flush(PATIENCE_S)
    names = [
        span.name
        for span in exporter.get_finished_spans()
        if span.attributes and "recfn.scope" in span.attributes
    ]
    assert names.count("work") == 1
    assert names.count("in the processor") <= 1  # for the program's span, in its thread
    assert all(enabled)
