"""An exporter that hangs while the program closes: what arrives once it goes on has all its parents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from test_no_orphans import REQUEST, ROWS, assert_balanced, program

from batches import BASE_NS, make_batch
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.spans.sink import SpansSink
from own_threads import wait_for_thread
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python


class Hangs(SpanExporter):
    """In its n-th export, until it is let go."""

    def __init__(self, first: int = 1) -> None:
        self.first, self.count = first, 0
        self.hanging, self.go_on = threading.Event(), threading.Event()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += 1
        if self.count == self.first:
            self.hanging.set()
            assert self.go_on.wait(PATIENCE_S)
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS

    def assert_no_orphans(self) -> None:
        there = {(span.context.trace_id, span.context.span_id) for span in self.spans} | {REQUEST[:2]}
        assert len(there) == len(self.spans) + 1, "a span was sent twice"
        orphans = [span.name for span in self.spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]
        assert orphans == []


def batched(exporter: SpanExporter) -> BatchSpanProcessor:
    return BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000)


@pytest.fixture(params=[REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"])
def batches(request: pytest.FixtureRequest) -> list[Batch]:
    return program(request.param)


def closed_while_it_hangs(sink: BackgroundSink, batches: list[Batch], written: int, exporter: Hangs) -> None:
    """The exporter hangs in a flush behind so many batches; then the others come, and the end."""
    for batch in batches[:written]:
        sink.write(batch)
    flushing = threading.Thread(target=sink.flush, args=(0.5,))
    flushing.start()
    assert exporter.hanging.wait(PATIENCE_S)
    for batch in batches[written:]:
        sink.write(batch)
    sink.close(0.2)
    flushing.join()


@pytest.mark.parametrize("written", [1, 2, 3])
@pytest.mark.parametrize("goes_on", ["before", "during"])
def test_what_earlier_spans_lie_in_is_handed_over_before_the_provider_ends(
    batches: list[Batch], written: int, goes_on: str
) -> None:
    exporter = Hangs()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(batched(exporter))
    sink = BackgroundSink(SpansSink(provider), max_share=1.0)
    closed_while_it_hangs(sink, batches, written, exporter)
    if goes_on == "before":
        exporter.go_on.set()
        wait_for_thread(sink)
        provider.shutdown()
    else:
        threading.Timer(0.1, exporter.go_on.set).start()
        provider.shutdown()
        wait_for_thread(sink)
    assert exporter.spans
    exporter.assert_no_orphans()
    assert_balanced(sink.counters(), ROWS)


DEEP = 20
"""The leaves that an exporter has before it hangs have more parents than a short queue takes."""


def deep_program(ref: SpanContextRef) -> list[Batch]:
    """Leaves, the deepest first; then the ranges around them, the outermost last."""
    around = [make_event_id(1, 1 + depth) for depth in range(DEEP)]

    def row(event_id: int, parent: int) -> dict[str, Any]:
        begun = {"start_ns": BASE_NS + (event_id & 0xFFFF), "end_ns": BASE_NS + 10_000}
        return {"event_id": event_id, "parent": parent, "root": around[0], "context": ref, **begun}

    leaves = [row(make_event_id(1, 100 + depth), around[depth]) for depth in range(DEEP)]
    chain = [row(own, outer) for own, outer in zip(around, [0, *around], strict=False)]
    opened = [{"event_id": around[0]}] if ref is NO_CONTEXT else []
    return [make_batch(leaves[::-1], opened), make_batch(chain[::-1])]


@pytest.mark.parametrize("ref", [REQUEST, NO_CONTEXT])
@pytest.mark.parametrize("process_ends", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_a_short_queue_does_not_overflow(ref: SpanContextRef, process_ends: bool, beside: bool) -> None:
    exporter, other = Hangs(9), Hangs(1000)
    provider = TracerProvider(shutdown_on_exit=False)
    options = {"max_queue_size": 8, "max_export_batch_size": 4, "schedule_delay_millis": 3_600_000}
    provider.add_span_processor(BatchSpanProcessor(exporter, **options))
    if beside:
        provider.add_span_processor(SimpleSpanProcessor(other))
    sink = BackgroundSink(SpansSink(provider), max_share=1.0)
    sink.write(deep_program(ref)[0])
    assert exporter.hanging.wait(PATIENCE_S)
    sink.write(deep_program(ref)[1])
    if process_ends:
        sink.process_ends(PATIENCE_S)
    sink.close(0.2)
    exporter.go_on.set()
    wait_for_thread(sink)
    provider.shutdown()
    assert exporter.spans
    exporter.assert_no_orphans()
    other.assert_no_orphans()
    assert_balanced(sink.counters(), 2 * DEEP)


@pytest.mark.parametrize("first", range(1, 10))
@pytest.mark.parametrize("beside", [False, True])
def test_in_a_processor_that_exports_at_once(batches: list[Batch], first: int, beside: bool) -> None:
    exporter, other = Hangs(first), Hangs(1000)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    if beside:
        provider.add_span_processor(batched(other))
    sink = BackgroundSink(SpansSink(provider), max_share=1.0)
    for batch in batches[:2]:
        sink.write(batch)
    assert exporter.hanging.wait(PATIENCE_S)
    sink.write(batches[2])
    sink.close(0.1)
    if beside:
        provider.force_flush()
        other.assert_no_orphans()
    exporter.go_on.set()
    wait_for_thread(sink)
    exporter.assert_no_orphans()
    assert_balanced(sink.counters(), ROWS)


def test_where_the_worker_hangs_in_something_else_it_hands_over_later(batches: list[Batch]) -> None:
    exporter = Hangs(1000)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(batched(exporter))
    inner = SpansSink(provider)
    hanging, go_on = threading.Event(), threading.Event()
    sink = BackgroundSink(inner, max_share=1.0)
    sink.write(batches[0])
    assert sink.flush(PATIENCE_S)
    write = inner.write

    def hangs(batch: Batch) -> None:
        hanging.set()
        assert go_on.wait(PATIENCE_S)
        write(batch)

    _replace(inner, hangs)
    for batch in batches[1:]:
        sink.write(batch)
    assert hanging.wait(PATIENCE_S)
    sink.close(0.1)
    go_on.set()
    wait_for_thread(sink)
    provider.force_flush()
    exporter.assert_no_orphans()
    assert_balanced(sink.counters(), ROWS)


def _replace(sink: SpansSink, write: Callable[[Batch], None]) -> None:
    sink.write = write  # type: ignore[method-assign]
