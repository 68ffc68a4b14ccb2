"""Random programs, random exporters: whatever the queue drops, is held up or flushed, every span that arrives has its parent.

Ranges begin in anything that began before, open or ended, and end in any order. The queue before the spans' thread is far too
small, the exporter hangs at times, and the end comes with more or less time. Where it is too short for all, what didn't go is
counted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.model.batch import NO_CONTEXT, SpanContextRef
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.spans import folding as folding_module
from otel_recfn.sinks.spans import provider as provider_module
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink
from own_threads import wait_for_thread
from patience import PATIENCE_S
from thoroughness import examples

pytestmark = pytest.mark.one_python

REQUEST = context(trace_id=0xABC, span_id=0xDEF)
THREADS = (MAIN_THREAD, WORKER_THREAD)
BEGIN, END, WRITE, FLUSH, HANG, GO_ON = range(6)
COMMON = (BEGIN, BEGIN, BEGIN, END, END, WRITE, WRITE)
STEPS = st.lists(st.tuples(st.sampled_from((*COMMON, FLUSH, HANG, GO_ON)), st.integers(0, 9), st.integers(0, 1)), max_size=60)


class Server(SpanExporter):
    """Keeps what arrives; hangs while it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.go_on.wait(PATIENCE_S)
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS

    def orphans(self) -> list[str]:
        there = {(span.context.trace_id, span.context.span_id) for span in self.spans} | {REQUEST[:2]}
        assert len(there) == len(self.spans) + 1, "a span came twice"
        return [span.name for span in self.spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]


class Program:
    """Its ranges, and the batches they come in."""

    def __init__(self, sink: BackgroundSink, server: Server) -> None:
        self.sink, self.server = sink, server
        self.begun: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self.opened: list[dict[str, Any]] = []

    def step(self, what: int, number: int, thread: int) -> None:
        if what == BEGIN:
            self.begin(number, thread)
        elif what == END and self.open:
            self.closed.append(self.open.pop(-1 - number % len(self.open)))
        elif what == WRITE:
            self.write()
        elif what == FLUSH:
            self.sink.flush(0.02)
        elif what in (HANG, GO_ON):
            (self.server.go_on.clear if what == HANG else self.server.go_on.set)()

    def begin(self, number: int, thread: int) -> None:
        above = self.begun[-1 - number % len(self.begun)] if self.begun and number else None
        event_id = make_event_id(THREADS[thread].number, len(self.begun) + 1)
        ref: SpanContextRef = above["context"] if above else (REQUEST, NO_CONTEXT)[len(self.begun) % 2]
        row = {"event_id": event_id, "thread": THREADS[thread], "start_ns": BASE_NS + len(self.begun), "context": ref}
        row |= {"parent": above["event_id"] if above else 0, "root": above["root"] if above else event_id}
        row["end_ns"] = BASE_NS + 1000
        if above is None:
            self.opened.append({key: row[key] for key in ("event_id", "start_ns", "context")} | {"thread": THREADS[thread]})
        self.begun.append(row)
        self.open.append(row)

    def write(self) -> None:
        self.sink.write(make_batch(self.closed, self.opened))
        self.closed, self.opened = [], []

    def end(self, timeout_s: float) -> None:
        self.closed += reversed(self.open)
        self.write()
        self.sink.close(timeout_s)


@examples(80)
@given(
    steps=STEPS,
    queued=st.integers(1, 12),
    chunk=st.integers(1, 4),
    at_once=st.booleans(),
    timeout_s=st.sampled_from((0.0, 0.01, 0.1, PATIENCE_S)),
    volume=st.sampled_from((EVERY_RANGE, Volume(1), Volume(3, 2, 6), Volume(1000))),
    rows_of_a_part=st.sampled_from((3, 100)),
)
def test_no_orphan_arrives(
    steps: list[tuple[int, int, int]],
    queued: int,
    chunk: int,
    at_once: bool,
    timeout_s: float,
    volume: Volume,
    rows_of_a_part: int,
) -> None:
    server, provider = Server(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(server) if at_once else BatchSpanProcessor(server))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provider_module, "MAX_CHUNK", chunk)
        patch.setattr(folding_module, "MAX_ROWS_OF_A_UNIT", rows_of_a_part)
        sink = BackgroundSink(SpansSink(provider, None, volume=volume), max_rows=queued, max_share=1.0)
        program = Program(sink, server)
        for step in steps:
            program.step(*step)
        if timeout_s == PATIENCE_S:
            server.go_on.set()
        program.end(timeout_s)
        server.go_on.set()
        wait_for_thread(sink)
    provider.shutdown()
    assert timeout_s < PATIENCE_S or server.orphans() == []
    counters = sink.counters()
    assert (
        counters["rows_received"] == counters["rows"] + counters["queue_dropped"] + counters["abandoned"] == len(program.begun)
    )
    fates = ("unsampled", "suppressed", "no_provider", "other_kinds", "folded", "folding", "failed", "spans")
    assert counters["rows"] + counters["roots"] + counters["summaries"] + counters["open_ranges"] == sum(
        counters[fate] for fate in fates
    )
    assert counters["folding"] == 0


@pytest.mark.parametrize("timeout_s", [0.0, 1e-9])
def test_what_was_folding_when_the_time_is_over_is_sent_or_has_failed(timeout_s: float) -> None:
    server, provider = Server(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(server))
    spans = SpansSink(provider, None, volume=Volume(1000))
    sink = BackgroundSink(spans, max_share=1.0)
    span = provider.get_tracer("program").start_span("request")
    of_span = span.get_span_context()
    spans.saw(of_span.trace_id, of_span.span_id, span)
    sink.write(make_batch([{"context": context(of_span.trace_id, of_span.span_id)}]))
    assert sink.flush(PATIENCE_S)
    assert sink.counters()["folding"] == 1
    sink.close(timeout_s)
    wait_for_thread(sink)
    provider.shutdown()
    counters = sink.counters()
    assert (counters["folding"], counters["spans"] + counters["failed"]) == (0, 1)
