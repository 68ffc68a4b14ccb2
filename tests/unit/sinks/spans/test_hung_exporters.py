"""An exporter hangs while the program closes: the end takes no longer than it may, and what didn't go is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags
from spans_harness import REQUEST, assert_balanced

from batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.sink import Process, SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 5
"""Of a batch."""
REQUEST_SPAN = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class Hangs(SpanExporter):
    """In its first export, until it is let go."""

    def __init__(self) -> None:
        self.hanging, self.go_on = threading.Event(), threading.Event()
        self.batches: list[Sequence[ReadableSpan]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.hanging.set()
        assert self.go_on.wait(PATIENCE_S)
        self.batches.append(spans)
        return SpanExportResult.SUCCESS


class OfTheProject(Hangs):
    """Which any thread may ask."""

    __module__ = "opentelemetry.exporter.test"


def batch(first: int) -> Batch:
    return make_batch([{"event_id": make_event_id(1, first + number), "context": REQUEST} for number in range(ROWS)])


def came(sink: SpansSink, rows: Batch) -> None:
    sink.write(rows)
    sink._decide(rests=True)


@pytest.mark.parametrize("process_ends", [False, True])
@pytest.mark.parametrize("at_once", [False, True], ids=["queued", "exported at once"])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(3)], ids=["every range", "folded"])
def test_an_end_in_the_middle_of_an_export(volume: Volume, at_once: bool, process_ends: bool) -> None:
    exporter, provider = Hangs(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter))
    sink = SpansSink(provider, volume=volume, process=Process(ends=lambda: process_ends, exit_timeout_s=0.1))
    came(sink, batch(1))
    flushing = threading.Thread(target=sink.flush, args=(PATIENCE_S,))
    flushing.start()
    assert exporter.hanging.wait(PATIENCE_S)
    came(sink, batch(100))
    sink.close(0.1)
    assert not exporter.go_on.is_set()
    counters = dict(sink.counters())
    assert ROWS <= counters["dropped.shutdown"] <= 2 * ROWS  # what is left of the first unit is, too
    assert_balanced(counters)
    exporter.go_on.set()
    flushing.join(PATIENCE_S)
    provider.shutdown()
    assert sum(map(len, exporter.batches)) <= ROWS


def test_the_provider_waits_for_no_export_of_ours_where_the_process_ends() -> None:
    exporter, provider = OfTheProject(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=ROWS))
    sink = SpansSink(provider, process=Process(ends=lambda: True, exit_timeout_s=0.1))
    came(sink, batch(1))
    assert exporter.hanging.wait(PATIENCE_S)
    sink.close(0.1)
    provider.shutdown()
    assert not exporter.go_on.is_set()
    assert_balanced(dict(sink.counters()))
    exporter.go_on.set()


def test_spans_of_the_program_wait_for_no_batches_of_ours_where_the_process_ends() -> None:
    """They go at once, in their order, and alone."""
    exporter, provider = Hangs(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=ROWS))
    target = ProviderResolver(provider).resolve()
    assert target is not None
    delivery, tracer = SpanDelivery(), provider.get_tracer("program")
    delivery.use(target)
    ours = [ReadableSpan("ours", REQUEST_SPAN, instrumentation_scope=target.scope)] * ROWS
    delivery.send(ours)
    assert exporter.hanging.wait(PATIENCE_S)
    requests = [f"request {number}" for number in range(2 * ROWS)]
    for name in requests:
        tracer.start_span(name).end()
        delivery.send(ours)
    delivery.remove(process_ends=True)
    exporter.go_on.set()
    provider.shutdown()
    first, second = ([span.name for span in spans] for spans in exporter.batches)
    assert (first, second) == (["ours"] * ROWS, requests)
    assert delivery.counters() == {"exported": ROWS, "failed": 0, "dropped.shutdown": 2 * ROWS * ROWS}
