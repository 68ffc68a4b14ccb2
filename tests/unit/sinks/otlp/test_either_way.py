"""A whole sink makes the same spans on either way out: folded or not, hooked, within limits, of open ranges."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batches import BASE_NS, context, make_batch, open_for_long
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.transports import Outcome, Verdict
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink
from patience import PATIENCE_S


class Keeps:
    """A transport that keeps what it is given."""

    where, encoding = "here", ""
    hidden: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def in_child(self) -> Keeps:
        return self

    def send(self, body: bytes) -> Outcome:
        self.bodies.append(body)
        return Outcome(Verdict.TAKEN)

    def close(self) -> None:
        pass

    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        scopes = [scope for request in requests for each in request.resource_spans for scope in each.scope_spans]
        return [span for scope in scopes for span in scope.spans]


def rows(units: int, ranges: int) -> list[dict[str, Any]]:
    """Units below spans of the program, each with ranges of several names, two levels, and an error."""
    found: list[dict[str, Any]] = []
    for unit in range(1, units + 1):
        start = BASE_NS + unit * 10**9
        outer = make_event_id(unit, ranges + 1)
        for number in range(1, ranges + 1):
            begin = start + number * 1000
            failed = {"flags": EventFlag.ERROR, "error": "ValueError: no", "stacktrace": f"at {number}"} if number == 3 else {}
            found.append(
                {
                    "event_id": make_event_id(unit, number), "parent": outer, "root": outer, "name": f"op {number % 5}",
                    "handle": number, "start_ns": begin, "end_ns": begin + number,
                    "context": context(unit, 0xA), "sequence_nr": number, **failed,
                }
            )  # fmt: skip
        ends = {"start_ns": start, "end_ns": start + 10**8, "context": context(unit, 0xA)}
        found.append({"event_id": outer, "root": outer, "name": "outer", **ends})
    return found


def hook(row: Any, attributes: dict[str, Any]) -> Any:
    """Renames some, drops others, and adds an attribute."""
    attributes["mine"] = [row.event_id % 7, 1]
    return False if row.name == "op 2" else "renamed" if row.name == "op 1" else None


@pytest.mark.parametrize("limits", [None, SpanLimits(max_span_attributes=4, max_events=0)])
@pytest.mark.parametrize("hooked", [None, hook])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(20, 10, 200, 0)])
def test_the_same_spans(volume: Volume, hooked: Any, limits: SpanLimits | None) -> None:
    exporter, keeps = InMemorySpanExporter(), Keeps()
    provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    through, beside = (
        SpansSink(provider, None, hook=hooked, volume=volume, delivery=way)
        for way in (None, OtlpDelivery(keeps, request_bytes=1024, queue_bytes=1 << 20))
    )
    counters = []
    for sink in (through, beside):
        sink.write(make_batch(rows(units=3, ranges=60)))
        sink.write(open_for_long(make_batch([{"event_id": make_event_id(9, 1), "name": "open", "context": context(7, 7)}])))
        assert sink.flush(PATIENCE_S)
        sink.close(PATIENCE_S)
        counters.append(dict(sink.counters()))
    expected = [
        span for each in encode_spans(exporter.get_finished_spans()).resource_spans for span in each.scope_spans[0].spans
    ]
    ours = keeps.spans()
    of_open_ranges = [[span for span in spans if span.name in ("open", "open for long")] for spans in (expected, ours)]
    assert [len(spans) for spans in of_open_ranges] == [2, 2]  # in a trace of their own, whose ids are by chance
    assert _in_order(ours) == _in_order(expected)
    assert len(keeps.bodies) > 1
    assert counters[0] == counters[1]
    assert counters[1]["exported"] == len(ours)


def _in_order(spans: list[Span]) -> list[bytes]:
    return sorted([span.SerializeToString() for span in spans if span.name not in ("open", "open for long")])
