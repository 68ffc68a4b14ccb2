"""Our spans through a real provider and real OTLP exporters, received by the official services;
and when nobody receives.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from helpers.batches import MAIN_THREAD, context, make_batch
from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.counters import OUTCOMES
from otel_recfn.model.events import EventFlag, RecordScope, make_event_id
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.support.span_ids import span_id

pytestmark = pytest.mark.one_python

PROTOCOLS = ("grpc", "http")
EXPORT_TIMEOUT_S = 3.0
"""After which an export that nobody answers has failed."""


@contextlib.contextmanager
def exporting(server: OtlpServer, timeout_s: float = PATIENCE_S) -> Iterator[TracerProvider]:
    """A provider that exports to the server, shut down at the end."""
    provider = TracerProvider(
        resource=Resource({"service.name": "train", "replicas": 3}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(new_exporter(server, timeout_s)))
    yield provider
    provider.shutdown()


def new_exporter(server: OtlpServer, timeout_s: float) -> SpanExporter:
    if server.protocol == "grpc":
        return GrpcExporter(endpoint=server.endpoint, insecure=True, timeout=timeout_s)
    return HttpExporter(endpoint=server.endpoint, timeout=timeout_s)


def plain(value: AnyValue) -> tuple[str, Any]:
    """The kind of an OTLP value and the value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return kind, [plain(one) for one in value.array_value.values]
    return kind, getattr(value, kind)


def attributes_of(one: Any) -> dict[str, tuple[str, Any]]:
    return {pair.key: plain(pair.value) for pair in one.attributes}


def training_batch(request: SpanContextRef) -> Batch:
    """A forward with a child, its backward, and a range that failed, below a span of the
    program.
    """
    forward, child, backward, failed = (make_event_id(1, ordinal) for ordinal in (1, 2, 3, 4))
    rows: list[dict[str, Any]] = [
        {"event_id": child, "parent": forward, "name": "aten::t", "sequence_nr": 6},
        {
            "event_id": forward, "name": "aten::linear", "sequence_nr": 7, "handle": 70,
            "node_id": 2, "debug_handle": 8, "shapes": "[[2,3],[]]",
            "dtypes": '["float","double"]', "module": "layers.0", "flags": EventFlag.ASYNC,
        },
        {
            "event_id": backward, "name": "AddmmBackward0", "sequence_nr": 7,
            "scope": RecordScope.BACKWARD_FUNCTION, "forward_thread_id": MAIN_THREAD.thread_id,
        },
        {
            "event_id": failed, "name": "load batch", "flags": EventFlag.ERROR,
            "error": "OSError: disk: full",
        },
    ]  # fmt: skip
    return make_batch([{**row, "context": request} for row in rows])


@pytest.fixture(params=PROTOCOLS)
def received(request: pytest.FixtureRequest) -> Iterator[tuple[OtlpServer, dict[str, Span]]]:
    """The spans of ``training_batch`` as a server received them, by name."""
    with OtlpServer(request.param) as server, exporting(server) as provider:
        with provider.get_tracer("program").start_as_current_span("request") as above:
            ids = above.get_span_context()
        sink = SpansSink(provider)
        sink.write(training_batch(context(ids.trace_id, ids.span_id)))
        sink.close(PATIENCE_S)
        assert sink.counters()["exported"] == 4
        yield server, {span.name: span for span in server.spans}


class TestReceived:
    def test_tree(self, received: tuple[OtlpServer, dict[str, Span]]) -> None:
        _, spans = received
        above = spans["request"]
        forward = spans["aten::linear"]
        assert len(spans) == 5
        assert {span.trace_id for span in spans.values()} == {above.trace_id}
        assert forward.parent_span_id == spans["AddmmBackward0"].parent_span_id == above.span_id
        assert spans["aten::t"].parent_span_id == forward.span_id
        assert forward.span_id == span_id(make_event_id(1, 1)).to_bytes(8, "big")

    def test_attributes_with_their_types(
        self, received: tuple[OtlpServer, dict[str, Span]]
    ) -> None:
        strings = [("string_value", text) for text in ("[2, 3]", "[]", "float", "double")]
        assert attributes_of(received[1]["aten::linear"]) == {
            "recfn.scope": ("string_value", "FUNCTION"),
            "recfn.sequence_nr": ("int_value", 7),
            "recfn.thread_id": ("int_value", 1),
            "recfn.event_id": ("int_value", make_event_id(1, 1)),
            "recfn.handle": ("int_value", 70),
            "recfn.node_id": ("int_value", 2),
            "recfn.debug_handle": ("int_value", 8),
            "recfn.async": ("bool_value", True),
            "recfn.module": ("string_value", "layers.0"),
            "recfn.input_shapes": ("array_value", strings[:2]),
            "recfn.input_dtypes": ("array_value", strings[2:]),
            "thread.id": ("int_value", MAIN_THREAD.ident),
            "thread.name": ("string_value", "MainThread"),
        }


def in_request(count: int, first: int) -> Batch:
    return make_batch(
        [{"context": context(1, 2), "event_id": first + number} for number in range(count)]
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", ["error", "hang", "refuse"])
class TestNobodyReceives:
    def test_writing_and_closing_do_not_wait(self, protocol: str, mode: str) -> None:
        timeout_s = PATIENCE_S if mode == "hang" else EXPORT_TIMEOUT_S
        with OtlpServer(protocol, mode) as server, exporting(server, timeout_s) as provider:
            sink = SpansSink(provider)
            sink.write(in_request(1000, first=1))
            if mode != "refuse":
                wait_until(lambda: server.answers.bodies != [])
            started = time.monotonic()
            for batch in [in_request(1000, first=1 + number * 1000) for number in range(1, 6)]:
                sink.write(batch)
            written = time.monotonic()
            sink.close(0.2)
            closed = time.monotonic()
            counters = sink.counters()
            server.release()
        assert written - started < PATIENCE_S / 3
        assert closed - written < PATIENCE_S / 3
        assert counters["recorded"] == 6000
        assert_balanced(counters)
        if mode == "hang":
            assert counters["exported"] <= 512  # a batch, which the provider's processor has
            assert counters["dropped.queue_full"] + counters["dropped.shutdown"] > 0

    def test_what_was_lost_is_counted_in_the_end(self, protocol: str, mode: str) -> None:
        with OtlpServer(protocol, mode) as server, exporting(server, EXPORT_TIMEOUT_S) as provider:
            sink = SpansSink(provider)
            sink.write(in_request(20, first=1))
            sink.close(PATIENCE_S)
            counters = sink.counters()
        # Processors don't say that a backend refused.
        assert counters["exported"] + counters["dropped.shutdown"] == 20
        assert_balanced(counters)


def assert_balanced(counters: Any) -> None:
    assert counters["recorded"] + counters["added"] == sum(
        counters[outcome] for outcome in OUTCOMES if outcome in counters
    )
