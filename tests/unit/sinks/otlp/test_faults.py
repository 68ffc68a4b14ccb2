"""Over real sockets: what may be sent again arrives once the server takes it, and everything else is counted."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from faulty_server import (
    Act,
    Answers,
    break_off,
    free_port,
    grpc_server,
    hang,
    held,
    http_server,
    refuse,
    reset,
    slow,
    status,
    take_partly,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

from otel_recfn.sinks.otlp.answers import RETRY_INFO
from otel_recfn.sinks.otlp.wire import field, integer
from patience import PATIENCE_S

MakeSending = Callable[..., Any]
PAST = format_datetime(datetime(2020, 1, 1, tzinfo=timezone.utc), usegmt=True)
RETRY_SOON = integer(1, 8) + field(3, field(1, RETRY_INFO) + field(2, field(1, integer(2, 1_000_000))))
"""A ``google.rpc.Status`` that wants to be asked again after a millisecond."""
Code = grpc.StatusCode
TIMEOUT_S = 1.0
"""Of the exporters: so long a request may take."""


@pytest.mark.parametrize(
    "act",
    [
        *[status(code) for code in (429, 502, 503, 504)],
        *[status(code, Retry_After="0") for code in (429, 503)],
        status(503, Retry_After=PAST),
        status(503, Retry_After="no such thing"),
        reset(),
        break_off(),
    ],
)
def test_what_may_be_sent_again_is_sent_again_with_the_same_bytes(act: Act, sending: MakeSending) -> None:
    answers = Answers([act, act])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint))
        to.send("a", "b")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == ["a", "b"]
    assert len(answers.bodies) == 3
    assert len(set(answers.bodies)) == 1
    counts = to.counts()
    assert (counts["spans_exported"], counts["requests_again"]) == (2, 2)
    assert "spans_failed" not in counts


@pytest.mark.parametrize("code", [302, 307, 400, 401, 404, 413, 500])
def test_what_a_server_refuses_is_counted_and_told_and_not_sent_again(
    code: int, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers([status(code, Location="http://localhost:1/elsewhere")])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint))
        to.send("refused")
        assert to.delivery.flush(PATIENCE_S)
        to.send("taken")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == ["taken"]
    assert len(answers.bodies) == 2
    assert to.counts()["spans_refused"] == 1
    assert f"HTTP {code}" in caplog.text


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_partial_success_is_counted_and_told_once_and_not_sent_again(
    over: str, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers([take_partly(1, "too old"), take_partly(7, "too old")])
    with (http_server if over == "http" else grpc_server)(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint) if over == "http" else OverGrpc(endpoint=endpoint))
        for _ in range(2):
            to.send("a", "b")
            assert to.delivery.flush(PATIENCE_S)
    counts = to.counts()
    assert (counts["spans_rejected"], counts["spans_exported"], len(answers.bodies)) == (
        3,
        1,
        2,
    )  # it can't reject more than came
    assert caplog.text.count("rejected: too old") == 1


@pytest.mark.parametrize(
    ("act", "again"),
    [
        (refuse(Code.UNAVAILABLE), True),
        (refuse(Code.UNAVAILABLE, RETRY_SOON), True),
        (refuse(Code.DATA_LOSS), True),
        (refuse(Code.RESOURCE_EXHAUSTED, RETRY_SOON), True),
        (refuse(Code.RESOURCE_EXHAUSTED), False),
        (refuse(Code.INVALID_ARGUMENT), False),
        (refuse(Code.UNAUTHENTICATED), False),
    ],
)
def test_codes_of_grpc(act: Act, again: bool, sending: MakeSending) -> None:
    answers = Answers([act])
    with grpc_server(answers) as endpoint:
        to = sending(OverGrpc(endpoint=endpoint))
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == (["op"] if again else [])
    assert len(set(answers.bodies)) == 1
    assert to.counts() == (
        {"spans": 1, "spans_exported": 1, "requests_sent": 2, "requests_again": 1}
        if again
        else {"spans": 1, "spans_failed": 1, "spans_refused": 1, "requests_sent": 1}
    )


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_server_that_comes_back_gets_all_that_waited(over: str, sending: MakeSending) -> None:
    answers, port = Answers(), free_port()
    endpoint = f"http://localhost:{port}"
    to = sending(
        OverHttp(endpoint=f"{endpoint}/v1/traces", timeout=TIMEOUT_S)
        if over == "http"
        else OverGrpc(endpoint=endpoint, timeout=TIMEOUT_S)
    )
    for name in ("a", "b", "c"):
        to.send(name)
    assert not to.delivery.flush(0.1)
    with (http_server if over == "http" else grpc_server)(answers, port):
        assert to.delivery.flush(PATIENCE_S)
    assert sorted(answers.names()) == ["a", "b", "c"]
    assert to.counts()["spans_exported"] == 3


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_server_that_hangs_is_left_at_the_timeout(over: str, sending: MakeSending) -> None:
    answers = Answers([hang()])
    with (http_server if over == "http" else grpc_server)(answers) as endpoint:
        to = sending(
            OverHttp(endpoint=endpoint, timeout=TIMEOUT_S) if over == "http" else OverGrpc(endpoint=endpoint, timeout=TIMEOUT_S)
        )
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == ["op"]
    assert to.counts()["requests_again"] == 1


def test_a_request_that_is_reset_in_its_middle_is_sent_again(sending: MakeSending) -> None:
    answers = Answers()
    answers.resets_in_body = 2
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint))
        names = [f"{number} " + "x" * 2000 for number in range(400)]
        to.send(*names)
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == names
    assert to.counts()["requests_again"] == 2


def test_a_slow_server_gets_each_request_once(sending: MakeSending) -> None:
    answers = Answers([slow(0.2), slow(0.2)])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint, timeout=PATIENCE_S))
        for name in ("a", "b", "c"):
            to.send(name)
        assert to.delivery.flush(PATIENCE_S)
    assert sorted(answers.names()) == ["a", "b", "c"]
    assert to.counts() == {"spans": 3, "spans_exported": 3, "requests_sent": 3}


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_two_requests_are_in_flight_at_once_and_never_more(over: str, sending: MakeSending) -> None:
    names, arrived, let_go = [f"op {number}" for number in range(6)], threading.Semaphore(0), threading.Event()
    answers = Answers(6 * [held(arrived, let_go)])
    with (http_server if over == "http" else grpc_server)(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint) if over == "http" else OverGrpc(endpoint=endpoint))
        for name in names:
            to.send(name)
        assert arrived.acquire(timeout=PATIENCE_S)
        assert arrived.acquire(timeout=PATIENCE_S)
        assert not to.delivery.flush(0.2)  # in which a third one would come
        assert not arrived.acquire(blocking=False)
        let_go.set()
        assert to.delivery.flush(PATIENCE_S)
    assert sorted(answers.names()) == names


def test_flush_and_end_are_bounded_and_what_is_left_is_counted(sending: MakeSending, caplog: pytest.LogCaptureFixture) -> None:
    with http_server(Answers([hang(), hang()])) as endpoint:
        to = sending(OverHttp(endpoint=endpoint, timeout=PATIENCE_S))
        to.send("a", "b")
        to.send("c")
        began = time.monotonic()
        assert not to.delivery.flush(0.1)
        to.delivery.hurry(0.1)
        to.delivery.flush(PATIENCE_S)
        to.delivery.remove()
        assert time.monotonic() - began < PATIENCE_S / 2
        assert to.counts()["spans_abandoned"] == 3
    assert "3 spans were not sent" in caplog.text


def test_while_a_server_is_away_the_oldest_requests_go_first(sending: MakeSending, caplog: pytest.LogCaptureFixture) -> None:
    answers, port = Answers(), free_port()
    to = sending(OverHttp(endpoint=f"http://localhost:{port}/v1/traces"), queue_bytes=4096)
    names = [f"op {number}" for number in range(100)]
    for name in names:
        to.send(name)
        assert to.counts()["export_queue_bytes"] <= 4096 + 2 * 1024  # and what is being sent
    with http_server(answers, port):
        assert to.delivery.flush(PATIENCE_S)
    counts, arrived = to.counts(), answers.names()
    assert counts["spans_crowded_out"] + len(arrived) == 100
    assert set(arrived) >= set(names[-4:])
    assert "no more than export_queue_bytes wait" in caplog.text


@pytest.mark.parametrize("compression", list(Compression))
def test_bodies_are_compressed_as_the_exporter_says(compression: Compression, sending: MakeSending) -> None:
    answers = Answers([status(503)])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint, compression=compression))
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.encodings == 2 * ["" if compression is Compression.NoCompression else compression.value]
    assert answers.names() == ["op"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate by openssl")
def test_a_wrong_certificate_loses_nothing_and_the_right_one_is_taken(sending: MakeSending, tmp_path: Path) -> None:
    pair = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *subject]
    subprocess.run([*make, "-keyout", str(pair[0]), "-out", str(pair[1])], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair[1], pair[0])
    answers = Answers()
    with http_server(answers, tls=tls) as endpoint:
        wrong, right = sending(OverHttp(endpoint=endpoint)), sending(OverHttp(endpoint=endpoint, certificate_file=str(pair[1])))
        for to in (wrong, right):
            to.send("op")
        assert not wrong.delivery.flush(0.1)
        assert right.delivery.flush(PATIENCE_S)
        assert wrong.counts()["spans_pending"] == 1
    assert answers.names() == ["op"]
