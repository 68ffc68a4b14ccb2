"""What the log says of a backend: no user info, no query, no value of a header, and little of
what the backend says itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import requests
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from helpers.faulty_server import Act, Answers, free_port, grpc_server, http_server, take_partly
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function

MakeSending = Callable[..., Any]
USER, PASSWORD, KEY, TOKEN = "some-user", "pa%2Fss'w0rd", "k3y-0f-query", "t0ken-of-header"
SECRETS = (USER, PASSWORD, "pa/ss'w0rd", "w0rd", KEY, TOKEN)
LONG = "\x1b[31m" + "rejected\r\nWARNING forged " + "\u202e\0 so long " * 4_600
MAX_MESSAGE_BYTES = 700
"""An endpoint, and 200 characters of the server's, between words of ours."""


@pytest.fixture(autouse=True)
def safe(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever the test has had logged holds no secret, and is one short line."""
    with caplog.at_level(logging.DEBUG, logger="otel_recfn"):
        yield
    ours = [record for record in caplog.get_records("call") if record.name.startswith("otel_recfn")]
    assert ours
    for record in ours:
        text = logging.Formatter().format(record)
        assert [each for each in SECRETS if each in text] == []
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < MAX_MESSAGE_BYTES


def with_secrets(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{USER}:{PASSWORD}@{rest}?key={KEY}"


def reason(text: str) -> Act:
    """Refused, in these words."""

    def act(where: Any, _body: bytes) -> None:
        where.wfile.write(f"HTTP/1.1 403 {text}\r\nContent-Length: 0\r\n\r\n".encode())

    return act


def send(sending: MakeSending, exporter: Any) -> dict[str, int]:
    to = sending(exporter)
    to.send("op")
    assert to.delivery.flush(PATIENCE_S)
    to.end()
    counts: dict[str, int] = to.counts()
    return counts


def moved(where: Any, _body: bytes) -> None:
    where.answer(302, b"", {"Location": f"http://{USER}:{PASSWORD}@elsewhere/v1/traces?key={KEY}"})


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (reason(f"Forbidden, {TOKEN} and {KEY} of {USER} are unknown"), "HTTP 403 Forbidden"),
        (reason("\x1b[31mForbidden" + " so long" * 5_000), "Forbidden so long"),
        (moved, "HTTP 302 Found to http://elsewhere/v1/traces, which is not followed"),
        (
            take_partly(1, LONG),
            "1 spans of a request were rejected: [31mrejected WARNING forged so long",
        ),
        (take_partly(1, f"unknown: {TOKEN}"), "1 spans of a request were rejected: unknown: ***"),
    ],
)
def test_what_a_server_says_over_http(
    act: Act, said: str, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    with http_server(Answers([act])) as endpoint:
        send(
            sending,
            OverHttp(endpoint=with_secrets(endpoint), headers={"authorization": f"Bearer {TOKEN}"}),
        )
        assert f"spans to {endpoint}: " in caplog.text
    assert said in caplog.text


def aborts(text: str) -> Act:
    def act(call: Any, _body: bytes) -> None:
        call.abort(grpc.StatusCode.PERMISSION_DENIED, text)

    return act


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            aborts(f"{TOKEN} is unknown, see http://{USER}:{PASSWORD}@there?key={KEY}"),
            "*** is unknown, see http://there",
        ),
        (aborts("\x1b[31mrefused\r\n" + "so long " * 200), "refused so long so long"),
        (
            take_partly(1, LONG),
            "1 spans of a request were rejected: [31mrejected WARNING forged so long",
        ),
    ],
)
def test_what_a_server_says_over_grpc(
    act: Act, said: str, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc_server(Answers([act])) as endpoint:
        send(sending, OverGrpc(endpoint=endpoint, headers=(("authorization", f"Bearer {TOKEN}"),)))
    assert said in caplog.text


@pytest.mark.parametrize("over", [OverHttp, OverGrpc])
def test_where_nobody_listens(
    over: Any, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = with_secrets(f"http://localhost:{free_port()}")
    to = sending(over(endpoint=endpoint))
    to.send("op")
    wait_until(lambda: "it is tried again" in caplog.text)
    to.end()


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}\n", f"{TOKEN}\u20ac", f"{TOKEN}\r\nx: y"])
@pytest.mark.parametrize("over", [OverHttp, OverGrpc])
def test_a_header_that_cannot_be_sent(
    over: Any, value: str, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    server = http_server if over is OverHttp else grpc_server
    with server(Answers()) as endpoint:
        exporter = over(endpoint=endpoint)
        if over is OverHttp:
            getattr(exporter, "_client", exporter)._headers["authorization"] = value
        else:
            exporter._headers = (("authorization", value),)
        assert send(sending, exporter)["failed"] == 1
    said = (
        "the endpoint or a header can't be used as it is"
        if over is OverHttp
        else "gRPC INTERNAL: Invalid metadata"
    )
    assert said in caplog.text


@pytest.mark.parametrize(
    "endpoint",
    [f"http://{USER}:{PASSWORD}@[oh?key={KEY}", f"{USER}:{PASSWORD}@localhost:1?key={KEY}"],
)
def test_an_endpoint_that_is_none(endpoint: str, sending: MakeSending) -> None:
    assert send(sending, OverHttp(endpoint=endpoint))["failed"] == 1


UNREACHABLE = f"Max retries exceeded with url: http://{USER}:{PASSWORD}@there/v1/traces?key={KEY}"


class Raises(SpanProcessor):
    """An exporter's error is the processor's."""

    def on_end(self, span: ReadableSpan) -> None:
        raise requests.ConnectionError(UNREACHABLE)

    def force_flush(self, timeout_millis: int = 0) -> bool:
        raise requests.ConnectionError(UNREACHABLE)


class RaisesToo(InMemorySink):
    """As a sink of the program's that sends."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, batch: Any) -> None:
        raise self._error


def test_a_processor_and_a_sink_that_raise_what_a_request_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = TracerProvider()
    instrumentor = OtelRecordFunctionInstrumentor()
    provider.add_span_processor(Raises())
    sinks = [RaisesToo(requests.ConnectionError(UNREACHABLE)), RaisesToo(RuntimeError(UNREACHABLE))]
    instrumentor.instrument(tracer_provider=provider, sinks=sinks)
    try:
        with record_function("op"):
            pass
        instrumentor.flush()
    finally:
        instrumentor.uninstrument()
    assert "a span processor raised in on_end" in caplog.text
    assert "in on_end" in caplog.text
    assert caplog.text.count("failed and was removed; the others go on: ") == 2
