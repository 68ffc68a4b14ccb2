"""Over real sockets: what may be sent again arrives once the server takes it, and everything
else is counted.
"""

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
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

from helpers.faulty_server import (
    Act,
    Answers,
    break_off,
    drip,
    free_port,
    grpc_server,
    hang,
    held,
    http_server,
    refuse,
    reset,
    status,
    take_and_break_off,
    take_partly,
)
from helpers.timeouts import PATIENCE_S, wait_until

MakeSending = Callable[..., Any]
PAST = format_datetime(datetime(2020, 1, 1, tzinfo=timezone.utc), usegmt=True)
Code = grpc.StatusCode


def retry_info(seconds: float) -> bytes:
    """A status that wants to be asked again after so long."""
    status = Status(code=8)
    status.details.add().Pack(
        RetryInfo(retry_delay=Duration(nanos=int(seconds * 1e9) % 10**9, seconds=int(seconds)))
    )
    return bytes(status.SerializeToString())


RETRY_SOON = retry_info(0.001)
RETRY_IN_A_SECOND = retry_info(1)
SERVERS: dict[str, Callable[..., Any]] = {"http": http_server, "grpc": grpc_server}
EXPORTERS: dict[str, Callable[..., Any]] = {"http": OverHttp, "grpc": OverGrpc}
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
def test_what_may_be_sent_again_is_sent_again_with_the_same_bytes(
    act: Act, sending: MakeSending
) -> None:
    answers = Answers([act, act])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint))
        to.send("a", "b")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == ["a", "b"]
    assert len(answers.bodies) == 3
    assert len(set(answers.bodies)) == 1
    assert to.counts() == {"exported": 2}


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
    assert to.counts()["failed"] == 1
    to.end()
    assert f"HTTP {code}" in caplog.text


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_request_that_is_too_large_is_told_with_the_setting_that_mends_it(
    over: str, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers([status(413) if over == "http" else refuse(Code.RESOURCE_EXHAUSTED)])
    with SERVERS[over](answers) as endpoint:
        to = sending(EXPORTERS[over](endpoint=endpoint))
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    to.end()
    assert "set export_request_bytes" in caplog.text


@pytest.mark.parametrize("header", [{"Content_Encoding": "gzip"}, {"Content_Length": "100"}])
def test_what_a_server_took_is_not_sent_again_if_its_answer_breaks_off(
    header: dict[str, str], sending: MakeSending
) -> None:
    answers = Answers([take_and_break_off(Content_Type="application/x-protobuf", **header)])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint))
        to.send("a")
        assert to.delivery.flush(PATIENCE_S)
    assert to.counts() == {"exported": 1}
    assert len(answers.bodies) == 1


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_partial_success_is_counted_and_told_once_and_not_sent_again(
    over: str, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers([take_partly(1, "too old"), take_partly(7, "too old")])
    with SERVERS[over](answers) as endpoint:
        to = sending(EXPORTERS[over](endpoint=endpoint))
        for _ in range(2):
            to.send("a", "b")
            assert to.delivery.flush(PATIENCE_S)
    counts = to.counts()
    assert counts == {"failed": 3, "exported": 1}  # it can't reject more than came
    assert len(answers.bodies) == 2
    to.end()
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
    assert len(answers.bodies) == 1 + again
    assert to.counts() == ({"exported": 1} if again else {"failed": 1})


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_server_that_comes_back_gets_all_that_waited(over: str, sending: MakeSending) -> None:
    answers = Answers()
    port = free_port()
    path = "/v1/traces" if over == "http" else ""
    to = sending(EXPORTERS[over](endpoint=f"http://localhost:{port}{path}", timeout=TIMEOUT_S))
    for name in ("a", "b", "c"):
        to.send(name)
    assert not to.delivery.flush(0.1)
    with SERVERS[over](answers, port):
        assert to.delivery.flush(PATIENCE_S)
    assert sorted(answers.names()) == ["a", "b", "c"]
    assert to.counts()["exported"] == 3


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("over", "act"),
    [
        ("http", status(503, Retry_After="1")),
        ("grpc", refuse(Code.RESOURCE_EXHAUSTED, RETRY_IN_A_SECOND)),
    ],
)
def test_a_server_is_left_alone_for_as_long_as_it_asks(
    over: str, act: Act, sending: MakeSending
) -> None:
    answers = Answers([act])
    with SERVERS[over](answers) as endpoint:
        to = sending(EXPORTERS[over](endpoint=endpoint))
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == ["op"]
    assert answers.times[1] - answers.times[0] >= 0.9


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_server_that_hangs_is_left_at_the_timeout(over: str, sending: MakeSending) -> None:
    answers = Answers([hang()])
    with SERVERS[over](answers) as endpoint:
        to = sending(EXPORTERS[over](endpoint=endpoint, timeout=TIMEOUT_S))
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.names() == ["op"]
    assert to.counts() == {"exported": 1}


def test_requests_go_over_connections_that_are_kept(sending: MakeSending) -> None:
    answers = Answers()
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint))
        for name in ("a", "b", "c", "d", "e"):
            to.send(name)
            assert to.delivery.flush(PATIENCE_S)
    assert sorted(answers.names()) == ["a", "b", "c", "d", "e"]
    assert len(answers.clients) <= 2


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_two_requests_are_in_flight_at_once_and_never_more(over: str, sending: MakeSending) -> None:
    names = [f"op {number}" for number in range(6)]
    arrived = threading.Semaphore(0)
    let_go = threading.Event()
    answers = Answers(6 * [held(arrived, let_go)])
    with SERVERS[over](answers) as endpoint:
        to = sending(EXPORTERS[over](endpoint=endpoint))
        for name in names:
            to.send(name)
        assert arrived.acquire(timeout=PATIENCE_S)
        assert arrived.acquire(timeout=PATIENCE_S)
        assert not to.delivery.flush(0.2)  # in which a third one would come
        assert not arrived.acquire(blocking=False)
        let_go.set()
        assert to.delivery.flush(PATIENCE_S)
    assert sorted(answers.names()) == names


@pytest.mark.parametrize("act", [hang(), drip(b"HTTP/1.1 200 OK\r\nX-Told: ")])
def test_flush_and_end_are_bounded_and_what_is_left_is_counted(
    act: Act, sending: MakeSending, caplog: pytest.LogCaptureFixture
) -> None:
    with http_server(Answers([act, act])) as endpoint:
        to = sending(OverHttp(endpoint=endpoint, timeout=PATIENCE_S))
        to.send("a", "b")
        to.send("c")
        began = time.monotonic()
        assert not to.delivery.flush(0.1)
        to.delivery.remove(process_ends=True)
        assert time.monotonic() - began < PATIENCE_S / 2
        assert to.counts()["dropped.shutdown"] == 3
    assert "3 spans were not sent" in caplog.text


@pytest.mark.parametrize("compression", list(Compression))
def test_bodies_are_compressed_as_the_exporter_says(
    compression: Compression, sending: MakeSending
) -> None:
    answers = Answers([status(503)])
    with http_server(answers) as endpoint:
        to = sending(OverHttp(endpoint=endpoint, compression=compression))
        to.send("op")
        assert to.delivery.flush(PATIENCE_S)
    assert answers.encodings == 2 * [
        "" if compression is Compression.NoCompression else compression.value
    ]
    assert answers.names() == ["op"]


class Certificate(NamedTuple):
    """Of localhost."""

    key: Path
    file: Path

    def http_context(self) -> ssl.SSLContext:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.file, self.key)
        return tls

    def grpc_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.file.read_bytes())])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate by openssl")
    folder = tmp_path_factory.mktemp("certificate")
    key = folder / "key.pem"
    file = folder / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        *subject,
    ]
    subprocess.run([*make, "-keyout", str(key), "-out", str(file)], check=True, capture_output=True)
    return Certificate(key, file)


@pytest.mark.one_python
@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_wrong_certificate_loses_nothing_and_the_right_one_is_taken(
    over: str, sending: MakeSending, certificate: Certificate
) -> None:
    answers = Answers()
    tls: Any = certificate.http_context() if over == "http" else certificate.grpc_credentials()
    with SERVERS[over](answers, tls=tls) as endpoint:
        wrong = sending(EXPORTERS[over](endpoint=endpoint))
        trusting = grpc.ssl_channel_credentials(certificate.file.read_bytes())
        trusts = (
            {"certificate_file": str(certificate.file)}
            if over == "http"
            else {"credentials": trusting}
        )
        right = sending(EXPORTERS[over](endpoint=endpoint, **trusts))
        for to in (wrong, right):
            to.send("op")
        wait_until(lambda: wrong.delivery.has_failed)
        assert right.delivery.flush(PATIENCE_S)
        assert wrong.counts()["waiting"] == 1
    assert answers.names() == ["op"]
