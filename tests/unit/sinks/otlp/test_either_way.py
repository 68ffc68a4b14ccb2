"""A sink makes the same spans on either way out; which way that is where the official exporters
are not as we read them.
"""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.batches import BASE_NS, context, make_batch, open_for_long
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.errors import SettingError
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.sinks.otlp.delivery import OtlpDelivery, otlp_delivery
from otel_recfn.sinks.otlp.transports import (
    GrpcTransport,
    HttpTransport,
    Outcome,
    Verdict,
    make_exporter,
    make_transport,
    transport_for,
)
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink


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
        scopes = [
            scope
            for request in requests
            for each in request.resource_spans
            for scope in each.scope_spans
        ]
        return [span for scope in scopes for span in scope.spans]


def rows(units: int, ranges: int) -> list[dict[str, Any]]:
    """Units below spans of the program, each with ranges of several names, two levels, and an
    error.
    """
    found: list[dict[str, Any]] = []
    for unit in range(1, units + 1):
        start = BASE_NS + unit * 10**9
        outer = make_event_id(unit, ranges + 1)
        for number in range(1, ranges + 1):
            begin = start + number * 1000
            failed = (
                {"flags": EventFlag.ERROR, "error": "ValueError: no", "stacktrace": f"at {number}"}
                if number == 3
                else {}
            )
            found.append(
                {
                    "event_id": make_event_id(unit, number), "parent": outer, "root": outer,
                    "name": f"op {number % 5}", "handle": number, "start_ns": begin,
                    "end_ns": begin + number, "context": context(unit, 0xA), "sequence_nr": number,
                    "cpu_time_ns": number % 5, **failed,
                }
            )  # fmt: skip
        ends = {
            "start_ns": start,
            "end_ns": start + 10**8,
            "cpu_time_ns": 10**7,
            "context": context(unit, 0xA),
        }
        found.append({"event_id": outer, "root": outer, "name": "outer", **ends})
    return found


def hook(row: Any, attributes: dict[str, Any]) -> Any:
    """Renames some, drops others, and adds an attribute."""
    attributes["mine"] = [row.event_id % 7, 1]
    return False if row.name == "op 2" else "renamed" if row.name == "op 1" else None


@pytest.mark.parametrize("limits", [None, SpanLimits(max_span_attributes=4)])
@pytest.mark.parametrize("hooked", [None, hook])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(20, 10, 200, 0)])
def test_the_same_spans(volume: Volume, hooked: Any, limits: SpanLimits | None) -> None:
    exporter = InMemorySpanExporter()
    keeps = Keeps()
    provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sdk_sink, own_sink = (
        SpansSink(provider, None, hook=hooked, volume=volume, delivery=way)
        for way in (None, OtlpDelivery(keeps, request_bytes=1024, queue_bytes=1 << 20))
    )
    counters = []
    for sink in (sdk_sink, own_sink):
        sink.write(make_batch(rows(units=3, ranges=60)))
        sink.write(
            open_for_long(
                make_batch(
                    [{"event_id": make_event_id(9, 1), "name": "open", "context": context(7, 7)}]
                )
            )
        )
        assert sink.flush(PATIENCE_S)
        sink.close(PATIENCE_S)
        counters.append(dict(sink.counters()))
    expected = [
        span
        for each in encode_spans(exporter.get_finished_spans()).resource_spans
        for span in each.scope_spans[0].spans
    ]
    ours = keeps.spans()
    open_range_spans = [
        [span for span in spans if span.name in ("open", "open for long")]
        for spans in (expected, ours)
    ]
    # In a trace of their own, whose ids are by chance.
    assert [len(spans) for spans in open_range_spans] == [2, 2]
    assert _in_order(ours) == _in_order(expected)
    assert len(keeps.bodies) > 1
    assert counters[0] == counters[1]
    assert counters[1]["exported"] == len(ours)


def _in_order(spans: list[Span]) -> list[bytes]:
    return sorted(
        [span.SerializeToString() for span in spans if span.name not in ("open", "open for long")]
    )


TIMEOUT_S = 3.0


def test_an_exporter_for_http_is_read_as_it_was_configured() -> None:
    session = requests.Session()
    exporter = OverHttp(
        endpoint="http://there:1/v1/traces", headers={"api-key": "k"}, timeout=TIMEOUT_S,
        compression=Compression.Gzip, session=session, certificate_file="ca.pem",
        client_key_file="key.pem", client_certificate_file="own.pem",
    )  # fmt: skip
    transport = make_transport(exporter, owned=False)
    assert isinstance(transport, HttpTransport)
    assert (transport.endpoint, transport.timeout_s, transport.encoding, transport.session) == (
        "http://there:1/v1/traces",
        TIMEOUT_S,
        "gzip",
        session,
    )
    assert transport.headers["api-key"] == "k"
    assert {name.lower(): value for name, value in transport.headers.items()}[
        "content-type"
    ] == "application/x-protobuf"
    assert (transport.session.verify, transport.session.cert) == ("ca.pem", ("own.pem", "key.pem"))


def test_an_exporter_for_grpc_is_read_as_it_was_configured() -> None:
    exporter = OverGrpc(
        endpoint="http://there:1", headers={"api-key": "k"}, timeout=TIMEOUT_S,
        compression=grpc.Compression.Gzip, channel_options=(("grpc.max_send_message_length", 5),),
    )  # fmt: skip
    transport = make_transport(exporter, owned=False)
    exporter.shutdown()
    assert isinstance(transport, GrpcTransport)
    assert (
        transport.endpoint,
        transport.credentials,
        transport.timeout_s,
        transport.compression,
    ) == (
        "there:1",
        None,
        TIMEOUT_S,
        grpc.Compression.Gzip,
    )
    assert transport.metadata == (("api-key", "k"),)
    assert ("grpc.max_send_message_length", 5) in transport.options
    secure = OverGrpc(endpoint="https://there:1")
    assert isinstance(make_transport(secure, owned=False).credentials, grpc.ChannelCredentials)  # type: ignore[union-attr]
    secure.shutdown()


ENVIRONMENT = {
    "ENDPOINT": "http://there:7",
    "HEADERS": "api-key=k",
    "TIMEOUT": "4",
    "COMPRESSION": "gzip",
}


@pytest.mark.parametrize("signal", ["", "TRACES_"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_environment_configures_as_it_does_the_official_exporters(
    protocol: str, signal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}{name}", value)
    configured = make_exporter(protocol)
    transport: Any = make_transport(configured, owned=True)
    configured.shutdown()
    path = "" if signal else "/v1/traces"
    assert transport.endpoint == (f"http://there:7{path}" if protocol == "http" else "there:7")
    assert transport.timeout_s == 4
    assert dict(transport.headers if protocol == "http" else transport.metadata)["api-key"] == "k"
    assert (transport.encoding if protocol == "http" else transport.compression) in (
        "gzip",
        grpc.Compression.Gzip,
    )


@pytest.mark.parametrize(
    ("asked", "protocol"), [(None, "Grpc"), ("grpc", "Grpc"), ("http/protobuf", "Http")]
)
def test_otlp_has_the_protocol_that_the_environment_says(
    asked: str | None, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", asked)
    assert type(transport_for("otlp")).__name__.startswith(protocol)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "zstd"),
    ],
)
def test_what_the_environment_asks_for_and_nobody_has_is_refused(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=message):
        OtelRecordFunctionInstrumentor().instrument(span_exporter="otlp")


def _without(exporter: Any, name: str) -> Any:
    delattr(exporter, name)
    return exporter


@pytest.mark.parametrize(
    ("exporter", "why"),
    [
        (ConsoleSpanExporter(), "none of the official OTLP exporters"),
        (_without(OverHttp(), "_endpoint"), "this version of OTLPSpanExporter is not known"),
        (_without(OverGrpc(), "_channel_options"), "this version of OTLPSpanExporter is not known"),
    ],
)
def test_spans_of_an_exporter_that_cannot_be_read_go_through_the_processors(
    exporter: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert otlp_delivery(exporter, 1 << 20, 1 << 20) is None
    assert why in caplog.text
    assert "through the provider's span processors" in caplog.text
