"""A spans sink with what it sent."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.batches import BASE_NS, MAIN_THREAD, context, make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.batch import Batch
from otel_recfn.model.counters import OUTCOMES
from otel_recfn.model.events import RecordScope, make_event_id
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.sinks.spans.span_hook import Hook

REQUEST = context(trace_id=0xABC, span_id=0xDEF)
FORWARD: dict[str, Any] = {"event_id": make_event_id(1, 1), "sequence_nr": 5, "name": "forward"}
BACKWARD: dict[str, Any] = {
    "event_id": make_event_id(1, 2), "sequence_nr": 5, "scope": RecordScope.BACKWARD_FUNCTION,
    "forward_thread_id": MAIN_THREAD.thread_id, "name": "backward",
}  # fmt: skip
"""A row that is linked to FORWARD."""


MADE: list[SpansSink] = []
"""The sinks that the running test has made, which end with it (``conftest.py``)."""
ELSEWHERE = TracerProvider(shutdown_on_exit=False).get_tracer("program")
"""A tracer of the program's whose spans no processor hears of."""
LATER_NS = 1 << 62


def spans_sink(*arguments: Any, **options: Any) -> SpansSink:
    """A sink that ends with the test."""
    MADE.append(SpansSink(*arguments, **options))
    return MADE[-1]


def write_unit(sink: SpansSink, rows: Sequence[dict[str, Any]]) -> None:
    """Write ranges below a span of the program's that ends with them: a whole unit, so that the
    sink decides it now.
    """
    span = ELSEWHERE.start_span("request", start_time=BASE_NS)
    ids = span.get_span_context()
    sink.note_parent_span(ids.trace_id, ids.span_id, span)
    batch = make_batch([{**row, "context": context(ids.trace_id, ids.span_id)} for row in rows])
    span.end(int(batch.end_ns.max()))
    sink.write(replace(batch, drained_ns=LATER_NS))


class Harness:
    """A sink, its provider, and what was exported."""

    def __init__(
        self,
        *,
        roots_per_second: float | None = None,
        volume: Volume = EVERY_RANGE,
        hook: Hook | None = None,
        **options: Any,
    ) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.sink = spans_sink(self.provider, roots_per_second, volume=volume, hook=hook)

    def write(
        self, *rows: dict[str, Any], opened: Sequence[dict[str, Any]] = (), flushes: bool = True
    ) -> list[ReadableSpan]:
        """The spans that are sent when these rows have come."""
        self.exporter.clear()
        self.came(make_batch(rows, opened), flushes=flushes)
        return list(self.exporter.get_finished_spans())

    def came(self, batch: Batch, *, flushes: bool = False) -> None:
        """A drain gave a batch, after which all that is decided is sent."""
        ended_ns = [*batch.end_ns.tolist(), *[one.start_ns for one in batch.opened]]
        self.sink.write(replace(batch, drained_ns=batch.drained_ns or max(ended_ns, default=0)))
        # A flush of the sink decides all that waits, so that there is no other way than this to
        # wait for what is decided already, and see what isn't.
        assert self.sink.flush(PATIENCE_S) if flushes else self.sink._sender.flush(PATIENCE_S)  # noqa: SLF001

    def one(self, **row: Any) -> ReadableSpan:
        """The span of one row below a span of the program."""
        (span,) = self.write({"context": REQUEST, **row})
        return span

    def close(self) -> list[ReadableSpan]:
        """The spans that come at the end."""
        self.exporter.clear()
        self.sink.close(PATIENCE_S)
        return list(self.exporter.get_finished_spans())


class Gated(SpanExporter):
    """Exports when it may, and says or raises what it is told to."""

    def __init__(
        self,
        result: SpanExportResult | BaseException = SpanExportResult.SUCCESS,
        *,
        is_open: bool = False,
    ) -> None:
        self.result = result
        self.began = threading.Event()
        self.open = threading.Event()
        if is_open:
            self.open.set()
        self.threads: set[str] = set()
        self.batches: list[Sequence[ReadableSpan]] = []

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for batch in self.batches for span in batch]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        assert self.open.wait(PATIENCE_S)
        self.threads.add(threading.current_thread().name)
        self.batches.append(spans)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def assert_balanced(counters: Mapping[str, int], waiting: int = 0) -> None:
    """All that came has one fate, but for so many that wait."""
    assert (
        counters["recorded"] + counters["added"]
        == sum(counters.get(outcome, 0) for outcome in OUTCOMES) + waiting
    )
    assert min(counters.values()) >= 0
