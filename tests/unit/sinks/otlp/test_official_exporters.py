"""What is read of the official exporters is still there; where it isn't, spans go through the processors."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
import requests
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.otlp.exporters import made, otlp_delivery, transport_of
from otel_recfn.sinks.otlp.transports import GrpcTransport, HttpTransport

TIMEOUT_S = 3.0


def test_an_exporter_for_http_is_read_as_it_was_configured() -> None:
    session = requests.Session()
    exporter = OverHttp(
        endpoint="http://there:1/v1/traces", headers={"api-key": "k"}, timeout=TIMEOUT_S, compression=Compression.Gzip,
        session=session, certificate_file="ca.pem", client_key_file="key.pem", client_certificate_file="own.pem",
    )  # fmt: skip
    transport = transport_of(exporter, owned=False)
    assert isinstance(transport, HttpTransport)
    assert (transport.endpoint, transport.timeout_s, transport.encoding, transport.session) == (
        "http://there:1/v1/traces",
        TIMEOUT_S,
        "gzip",
        session,
    )
    assert transport.headers["api-key"] == "k"
    assert {name.lower(): value for name, value in transport.headers.items()}["content-type"] == "application/x-protobuf"
    assert (transport.session.verify, transport.session.cert) == ("ca.pem", ("own.pem", "key.pem"))


def test_an_exporter_for_grpc_is_read_as_it_was_configured() -> None:
    exporter = OverGrpc(
        endpoint="http://there:1", headers={"api-key": "k"}, timeout=TIMEOUT_S, compression=grpc.Compression.Gzip,
        channel_options=(("grpc.max_send_message_length", 5),),
    )  # fmt: skip
    transport = transport_of(exporter, owned=False)
    exporter.shutdown()
    assert isinstance(transport, GrpcTransport)
    assert (transport.endpoint, transport.credentials, transport.timeout_s, transport.compression) == (
        "there:1",
        None,
        TIMEOUT_S,
        grpc.Compression.Gzip,
    )
    assert transport.metadata == (("api-key", "k"),)
    assert ("grpc.max_send_message_length", 5) in transport.options
    secure = OverGrpc(endpoint="https://there:1")
    assert isinstance(transport_of(secure, owned=False).credentials, grpc.ChannelCredentials)  # type: ignore[union-attr]
    secure.shutdown()


ENVIRONMENT = {"ENDPOINT": "http://there:7", "HEADERS": "api-key=k", "TIMEOUT": "4", "COMPRESSION": "gzip"}


@pytest.mark.parametrize("signal", ["", "TRACES_"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_environment_configures_as_it_does_the_official_exporters(
    protocol: str, signal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}{name}", value)
    configured = made(protocol)
    transport: Any = transport_of(configured, owned=True)
    configured.shutdown()
    path = "" if signal else "/v1/traces"
    assert transport.endpoint == (f"http://there:7{path}" if protocol == "http" else "there:7")
    assert transport.timeout_s == 4
    assert dict(transport.headers if protocol == "http" else transport.metadata)["api-key"] == "k"
    assert (transport.encoding if protocol == "http" else transport.compression) in ("gzip", grpc.Compression.Gzip)


@pytest.mark.parametrize(("asked", "protocol"), [(None, "Grpc"), ("grpc", "Grpc"), ("http/protobuf", "Http")])
def test_otlp_has_the_protocol_that_the_environment_says(
    asked: str | None, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", asked)
    delivery: Any = otlp_delivery("otlp", 1 << 20, 1 << 20)
    assert type(delivery._transport).__name__.startswith(protocol)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "zstd"),
    ],
)
def test_what_the_environment_asks_for_and_nobody_has_is_refused(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=told):
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
