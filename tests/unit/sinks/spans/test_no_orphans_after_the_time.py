"""The time for the end is over, and nothing hangs: what spans that were sent lie in is sent before the end returns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from test_no_orphans import REQUEST, ROWS, Sent, new_provider, program
from test_no_orphans_of_hung_exporters import deep_program

from otel_recfn.model.batch import NO_CONTEXT, Batch
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.spans import provider as provider_module
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.support.own_thread import OwnThread
from own_threads import wait_for_thread
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

VOLUMES = (EVERY_RANGE, Volume(3))
WAITS = 8
"""How often an end that has no time left waits for the worker before the worker is done with what it computes."""


class Waits:
    """Counts how often an end waits for the worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.over = WAITS, threading.Event()
        self._wait = OwnThread.wait_for_end
        monkeypatch.setattr(OwnThread, "wait_for_end", lambda thread, timeout_s: self.wait(thread, timeout_s))

    def wait(self, thread: OwnThread, timeout_s: float) -> None:
        self.left -= 1
        self._wait(thread, timeout_s)

    def compute(self) -> None:
        """Keep a processor busy until the end has waited so often, or has returned."""
        while self.left > 0 and not self.over.is_set():
            pass


@pytest.fixture(params=[REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"])
def batches(request: pytest.FixtureRequest) -> list[Batch]:
    return program(request.param)


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("timeout_s", [0.0, 0.01])
@pytest.mark.parametrize("volume", VOLUMES, ids=["every range", "folded"])
def test_an_end_waits_for_a_worker_that_computes(
    batches: list[Batch], written: int, timeout_s: float, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: on an overloaded machine, or with millions of rows in a batch."""
    sent, waits, inner_is_late = Sent(), Waits(monkeypatch), threading.Event()
    inner = SpansSink(new_provider(sent), volume=volume)
    sink = BackgroundSink(inner, max_share=1.0)
    for batch in batches[:written]:
        sink.write(batch)
    assert sink.flush(PATIENCE_S)
    write = inner.write

    def computes(batch: Batch) -> None:
        inner_is_late.set()
        waits.compute()
        write(batch)

    monkeypatch.setattr(inner, "write", computes)
    for batch in batches[written:]:
        sink.write(batch)
    assert inner_is_late.wait(PATIENCE_S)
    sink.close(timeout_s)
    spans, counters = list(sent.spans), sink.counters()
    waits.over.set()
    wait_for_thread(sink)
    sent.assert_no_orphans()
    assert spans == sent.spans, "some come after the end has returned"
    assert counters == sink.counters()
    assert (counters["rows"] + counters["abandoned"], counters["queued"], counters["folding"]) == (ROWS, 0, 0)


class Computes(SpanExporter):
    """Takes its time, in which it computes."""

    def __init__(self, waits: Waits) -> None:
        self.waits, self.spans = waits, list[ReadableSpan]()
        self.is_late = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.spans:
            self.is_late.set()
            self.waits.compute()
        self.spans += spans
        return SpanExportResult.SUCCESS


def test_an_end_waits_for_an_exporter_that_is_back_at_once(batches: list[Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker was superseded while it handed a span to a processor that exports it, which it does with the others, too."""
    waits = Waits(monkeypatch)
    exporter = Computes(waits)
    sink = BackgroundSink(SpansSink(new_provider(SimpleSpanProcessor(exporter))), max_share=1.0)
    for batch in batches:
        sink.write(batch)
    assert exporter.is_late.wait(PATIENCE_S)
    sink.close(0.0)
    sent = Sent()
    sent.spans = list(exporter.spans)
    waits.over.set()
    wait_for_thread(sink)
    sent.assert_no_orphans()


class Queueing(SpanProcessor):
    """Queues so many spans, and drops the oldest beyond; exports in a flush that is given time."""

    def __init__(self, most: int) -> None:
        self.queue: deque[ReadableSpan] = deque(maxlen=most)
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.queue.append(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.spans += self.queue
        self.queue.clear()
        return True


@pytest.mark.parametrize("ref", [REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"])
def test_processors_that_queue_have_room_for_what_comes_last(ref: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no time is left at all, too: the SDK flushes no processor then."""
    monkeypatch.setattr(provider_module, "MAX_CHUNK", 2)
    queueing, provider = Queueing(8), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queueing)
    inner = SpansSink(provider)
    first, rest = deep_program(ref)
    inner.write(first)
    inner.give_up([rest], 0.0)
    inner.close(0.0)
    queueing.force_flush()
    sent = Sent()
    sent.spans = queueing.spans
    assert len(sent.spans) >= len(first) + len(rest)
    sent.assert_no_orphans()
