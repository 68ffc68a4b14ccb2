"""The doctor sends what an exporter would send, and says what became of it."""

from __future__ import annotations

import pytest

from helpers.otlp_server import OtlpServer
from otel_recfn.cli import doctor

pytestmark = pytest.mark.one_python
PROTOCOLS = {"grpc": "grpc", "http": "http/protobuf"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("mode", "ok"), [("ok", True), ("error", False)])
def test_an_endpoint_is_asked_by_a_real_request(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    protocol: str,
    mode: str,
    ok: bool,
) -> None:
    monkeypatch.setattr(doctor, "REQUEST_SECONDS", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOLS[protocol])
    with OtlpServer(protocol, mode) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.endpoint)
        check = doctor.endpoint()
    assert check[0] is ok
    assert ("takes OTLP requests" if ok else "takes no OTLP request") in check[1]
    assert server.resource_spans == []  # it left nothing behind
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
)
@pytest.mark.parametrize(
    ("asked", "spoken", "looks"),
    [
        ("grpc", "http", "this looks like HTTP: set {}=http/protobuf"),
        ("http", "grpc", "this looks like gRPC: set {}=grpc"),
    ],
)
def test_a_server_of_the_other_protocol_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    variable: str,
    asked: str,
    spoken: str,
    looks: str,
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    monkeypatch.setenv(variable, PROTOCOLS[asked])
    with OtlpServer(spoken) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{server.port}")
        check = doctor.endpoint()
    assert check[0] is False
    assert looks.format(variable) in check[1]


def test_a_variable_that_there_is_not_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RECFN_CHROME_TARCE", "trace.json")
    check = doctor.settings()
    assert check[0] is False
    assert "did you mean OTEL_RECFN_CHROME_TRACE?" in check[1]
