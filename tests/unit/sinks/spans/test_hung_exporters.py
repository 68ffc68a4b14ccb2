"""An exporter hangs while the program closes: the end takes no longer than it may, and what didn't go is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from spans_harness import REQUEST, assert_balanced

from batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import Process, SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 5
"""Of a batch."""


class Hangs(SpanExporter):
    """In its first export, until it is let go."""

    def __init__(self) -> None:
        self.hanging, self.go_on = threading.Event(), threading.Event()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.hanging.set()
        assert self.go_on.wait(PATIENCE_S)
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


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
    assert len(exporter.spans) <= ROWS
