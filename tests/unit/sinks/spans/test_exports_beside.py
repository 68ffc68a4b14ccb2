"""Where spans have a budget, a processor with a thread of its own exports them there, and the folding goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batches import BASE_NS, context, make_batch
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import batch_writing, writers
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.sink import SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

QUEUE, CHUNK = 2048, 512
UNITS, ROWS = 30, 300


class Gated(SpanExporter):
    """Exports when it may."""

    def __init__(self, result: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.open = threading.Event()
        self.threads: set[str] = set()
        self.spans: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.open.wait(PATIENCE_S)
        self.threads.add(threading.current_thread().name)
        self.spans += [span.name for span in spans]
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Written:
    """Units that end one after the other, written in a thread."""

    def __init__(self, exporter: Gated, *, shut_down: bool = False, has_more: bool = False) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE, schedule_delay_millis=3_600_000)
        self.provider.add_span_processor(self.processor)
        self.sink = SpansSink(self.provider, None, volume=Volume(1000))
        self.sink.set_backlog(lambda: has_more)
        if shut_down:
            exporter.open.set()
            self.processor.shutdown()
        self._thread = threading.Thread(target=self._write, name="writes")
        self._thread.start()

    def _write(self) -> None:
        for unit in range(UNITS):
            place = {"context": context(1, unit + 1), "start_ns": BASE_NS, "end_ns": BASE_NS + 1}
            ids = range(unit * ROWS + 1, unit * ROWS + ROWS + 1)
            self.sink.write(make_batch([{"event_id": make_event_id(1, number), **place} for number in ids]))
        self.sink.write(make_batch([{"context": context(1, UNITS + 1), "event_id": make_event_id(1, UNITS * ROWS + 1)}]))

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def finish(self) -> dict[str, int]:
        self.wait()
        self.sink.close(PATIENCE_S)
        counters = dict(self.sink.counters())
        self.provider.shutdown()
        return counters


def test_the_processors_thread_exports_and_nothing_is_dropped() -> None:
    exporter = Gated()
    written = Written(exporter)
    exporter.open.set()
    counters = written.finish()
    assert (counters["spans_exported"], len(exporter.spans)) == (UNITS * ROWS + 1, UNITS * ROWS + 1)
    assert any("OtelBatchSpan" in name for name in exporter.threads)


def test_half_of_the_queue_is_left_to_the_program_while_an_exporter_hangs() -> None:
    exporter = Gated()
    written = Written(exporter)
    own = QUEUE // 2 - 512  # what the exporter has in hand is in the queue no more
    for _ in range(own):
        written.provider.get_tracer("program").start_span("own").end()
    exporter.open.set()
    counters = written.finish()
    assert counters["spans_exported"] == UNITS * ROWS + 1
    assert exporter.spans.count("own") == own


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, ValueError("no")])
def test_an_exporter_that_fails_holds_nobody_up(result: SpanExportResult | Exception) -> None:
    exporter = Gated(result)
    exporter.open.set()
    counters = Written(exporter).finish()
    assert (counters["spans_exported"], counters["spans_failed"]) == (0, UNITS * ROWS + 1)


def test_a_processor_that_was_shut_down_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_recfn.sinks.spans.delivery.EXPORT_SECONDS", 0.01)
    counters = Written(Gated(), shut_down=True).finish()
    assert counters["spans"] == UNITS * ROWS + 1
    assert counters["spans_exported"] == 0


@pytest.mark.parametrize(
    ("sizes", "room"),
    [
        ([(2048, 512)], 1024),
        ([(2048, 900)], 0),
        ([(400, 50)], 200),
        ([(64, 64)], 0),
        ([(4096, 512), (2048, 512)], 1024),
        ([(2048, 512), (64, 16)], 0),  # the thread of the first would wait for a batch that the other has no room for
        ([(64, 16), (2048, 512)], 0),
    ],
)
def test_room_beside(sizes: Sequence[tuple[int, int]], room: int) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    for queue, batch in sizes:
        provider.add_span_processor(BatchSpanProcessor(Gated(), max_queue_size=queue, max_export_batch_size=batch))
    target = ProviderResolver(provider).resolve()
    assert target is not None
    assert target.room_beside() == room
    provider.shutdown()


@pytest.mark.parametrize("most", [writers.MOST_WAITING_SPANS, 500])
def test_rows_that_wait_are_folded_while_the_exporter_is_away(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(batch_writing, "MOST_UNDECIDED", ROWS)
    monkeypatch.setattr(writers, "MOST_WAITING_SPANS", most)
    exporter = Gated()
    written = Written(exporter, has_more=True)
    if most > UNITS * ROWS:
        written.wait()
        assert written.sink.counters()["rows"] == UNITS * ROWS + 1
        assert written.sink.counters()["spans"] <= QUEUE // 2
    exporter.open.set()
    counters = written.finish()
    assert counters["spans_exported"] == len(exporter.spans) == UNITS * ROWS + 1
    assert counters["folding"] == counters["failed"] == 0


def test_few_spans_are_made_before_rows_that_wait_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_writing, "MOST_UNDECIDED", (UNITS - 1) * ROWS)
    monkeypatch.setattr(SpanDelivery, "has_room", lambda _self, _spans: True)
    exporter = Gated()
    exporter.open.set()
    written = Written(exporter, has_more=True)
    written.wait()
    assert written.sink.counters()["rows"] == UNITS * ROWS + 1
    assert 0 < written.sink.counters()["spans"] <= QUEUE
    counters = written.finish()
    assert counters["spans_exported"] == len(exporter.spans) == UNITS * ROWS + 1


@pytest.mark.parametrize("per_second", [1000.0, None])
def test_where_there_may_be_few_spans_a_second_many_go_out_by_and_by(per_second: float | None) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    sink = SpansSink(provider, None, volume=Volume(1000, per_second=per_second))
    owed_s: list[float] = []

    def pace(owed: float = 0.0) -> None:
        owed_s.append(owed)

    sink.set_pace(pace)
    ids = range(1, 1001)
    sink.write(make_batch([{"context": context(1, 1), "event_id": make_event_id(1, number)} for number in ids]))
    sink.close(PATIENCE_S)
    provider.shutdown()
    assert sink.counters()["spans_exported"] > CHUNK
    assert max(owed_s) <= CHUNK / writers.LEAST_BURST_PER_SECOND
    assert any(owed_s) is (per_second is not None)


def test_nothing_rests_for_the_one_span_that_each_unit_has() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    sink = SpansSink(provider, None, volume=Volume(1000, per_second=1000.0))
    owed_s: list[float] = []

    def pace(owed: float = 0.0) -> None:
        owed_s.append(owed)

    sink.set_pace(pace)
    rows = [{"context": context(1, number), "event_id": make_event_id(1, number)} for number in range(1, 2001)]
    sink.write(make_batch(rows))
    sink.close(PATIENCE_S)
    provider.shutdown()
    assert sink.counters()["spans_exported"] == len(rows)
    assert not any(owed_s)
