"""The transports over HTTP and gRPC: one attempt to send a request, and its outcome by OTLP's rules
for retries.

TLS, proxies, compression over gRPC and connections are the business of ``requests`` and grpcio.
Where to, and how, is what an official exporter was configured with. This is the one place that
knows their insides; what is read that they don't promise is pinned by ``test_either_way.py``, and
where it is missing there is no way around the processors:

    HTTP   _endpoint, _compression; _client._headers, ._timeout, ._transport._session
           (before there was a _client: _headers, _timeout, _session)
    gRPC   _endpoint, _insecure, _credentials, _channel_options, _headers, _timeout, _compression
"""

from __future__ import annotations

# Of these two, which requests would import in the thread that sends.
import encodings.idna  # noqa: F401
import netrc  # noqa: F401
import os
import threading
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_recfn.support.safe_texts import safe_request_error, safe_text, secrets_of

PACKAGE = "opentelemetry.exporter.otlp.proto."
HTTP, GRPC = "http", "grpc"
_ASKED = {"otlp-grpc": GRPC, "otlp-http": HTTP}
_IN_ENVIRONMENT = {"grpc": GRPC, "http/protobuf": HTTP}
DEFAULT_PROTOCOL = "grpc"
"""The protocol of ``otlp`` if no variable names one, as in the SDK."""
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RETRYABLE_STATUS = {429, 502, 503, 504}
CONTENT_TOO_LARGE = 413
RETRYABLE_CODES = {
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNAVAILABLE",
    "DATA_LOSS",
}
RETRYABLE_WITH_DELAY = "RESOURCE_EXHAUSTED"
"""The code that is retried only if the server says when; else it is a quota that stays used up,
or a too large message.
"""
DETAILS = "grpc-status-details-bin"
RECONNECTS = (
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
"""The channel's options for reconnecting; else it waits for minutes before it tries a server
again.
"""
MAX_ANSWER = 1 << 16
"""The most bytes of an answer that are read."""
MAX_DELAY_S = 600.0
"""The longest pause that a server may ask for."""
TOO_LARGE = (
    "where the request was too large, set export_request_bytes to what servers and proxies take"
    " (nginx: 1 MiB)"
)


class Verdict(Enum):
    """The decision about a request after an attempt."""

    TAKEN = "taken"
    """The server has it, but for spans that it says it rejected."""
    AGAIN = "again"
    """The same bytes are sent again, later."""
    REFUSED = "refused"
    """Sending it again would not help."""


class Outcome(NamedTuple):
    """The outcome of one attempt."""

    verdict: Verdict
    message: str = ""
    """The message, made safe by ``safe_text``."""
    rejected: int = 0
    """The spans of a taken request that the server did not take."""
    delay_s: float | None = None
    """The seconds that the server asks to wait; None if it doesn't."""


class HttpTransport:
    """A transport over HTTP to one endpoint, for several threads, by the official exporter's
    session of ``requests``.

    The session is closed in the end if it is ``owned``: nobody else uses it.
    """

    def __init__(self, exporter: Any, owned: bool) -> None:
        client = getattr(exporter, "_client", exporter)
        self.session = (
            client._transport._session if hasattr(client, "_transport") else exporter._session
        )
        self._owned = owned
        self.endpoint = exporter._endpoint
        self.timeout_s = float(client._timeout)
        encoding = exporter._compression.value
        self.encoding: str = "" if encoding == "none" else encoding
        """The compression of bodies; empty for none."""
        headers = dict(client._headers)
        self.hidden = secrets_of(self.endpoint, headers.items())
        self.where = safe_text(self.endpoint, self.hidden)
        """The endpoint for messages, and what may be in none of them."""
        self.headers = {
            key: value for key, value in headers.items() if key.lower() != "content-encoding"
        }
        if self.encoding:
            self.headers["Content-Encoding"] = self.encoding

    def send(self, body: bytes) -> Outcome:
        try:
            with self.session.post(
                self.endpoint,
                data=body,
                headers=self.headers,
                timeout=self.timeout_s,
                # Named here, else REQUESTS_CA_BUNDLE would win over the exporter's certificate.
                verify=self.session.verify,
                allow_redirects=False,
                stream=True,
            ) as response:
                return self._outcome(response, _content(response))
        except OSError as error:  # all errors of requests are OSErrors
            # a ValueError: an endpoint that is no URL, or an invalid header
            verdict = Verdict.REFUSED if isinstance(error, ValueError) else Verdict.AGAIN
            return Outcome(verdict, safe_request_error(error, self.hidden))

    def _outcome(self, response: Any, content: bytes) -> Outcome:
        status = response.status_code
        if 200 <= status < 300:
            has_message = "protobuf" in response.headers.get("Content-Type", "")
            return _taken(content if has_message else b"", self.hidden)
        message = f"HTTP {status} {safe_text(response.reason, self.hidden)}"
        if status in RETRYABLE_STATUS:
            return Outcome(
                Verdict.AGAIN, message, delay_s=retry_after_s(response.headers.get("Retry-After"))
            )
        if 300 <= status < 400:
            location = safe_text(response.headers.get("Location", "nowhere"), self.hidden)
            message += (
                f" to {location}, which is not followed: set the endpoint to where spans are taken"
            )
        return Outcome(
            Verdict.REFUSED, f"{message}: {TOO_LARGE}" if status == CONTENT_TOO_LARGE else message
        )

    def close(self) -> None:
        if self._owned:
            self.session.close()

    def in_child(self) -> HttpTransport:
        self.session.close()
        return self


class GrpcTransport:
    """A transport over gRPC through a channel, which connects with the first request."""

    encoding = ""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.endpoint = exporter._endpoint
        self.timeout_s = float(exporter._timeout)
        self.compression = exporter._compression
        self.credentials = None if exporter._insecure else exporter._credentials
        """The credentials; None for no TLS."""
        self.options = tuple(exporter._channel_options)
        self.metadata = tuple(exporter._headers)
        self.hidden = secrets_of(self.endpoint, self.metadata)
        self.where = safe_text(self.endpoint, self.hidden)
        self._channel: Any = None
        self._connecting = threading.Lock()

    def send(self, body: bytes) -> Outcome:
        import grpc  # already imported by whoever has its exporter

        with self._connecting:
            if self._channel is None:
                self._channel = self._connected(grpc)
        try:
            answer = self._channel.unary_unary(METHOD)(
                body, timeout=self.timeout_s, metadata=self.metadata
            )
        except grpc.RpcError as error:
            return self._failure(error)
        return _taken(answer, self.hidden)

    def _connected(self, grpc: Any) -> Any:
        named = {name for name, _ in self.options}
        options = (
            *self.options,
            *[(name, value) for name, value in RECONNECTS if name not in named],
        )
        if self.credentials is None:
            return grpc.insecure_channel(self.endpoint, options, self.compression)
        return grpc.secure_channel(self.endpoint, self.credentials, options, self.compression)

    def _failure(self, error: Any) -> Outcome:
        code = error.code().name
        message = f"gRPC {code}: {safe_text(error.details(), self.hidden)}"
        delay_s = retry_info_s(dict(error.trailing_metadata() or ()).get(DETAILS, b""))
        if code in RETRYABLE_CODES or (code == RETRYABLE_WITH_DELAY and delay_s is not None):
            return Outcome(Verdict.AGAIN, message, delay_s=delay_s)
        return Outcome(
            Verdict.REFUSED, f"{message}: {TOO_LARGE}" if code == RETRYABLE_WITH_DELAY else message
        )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def in_child(self) -> GrpcTransport:
        return GrpcTransport(self._exporter)


Transport = HttpTransport | GrpcTransport


class UnreadableExporterError(Exception):
    """An exporter that isn't known here, or keeps its settings elsewhere."""


def transport_for(exporter: Any) -> Transport:
    """The transport for a value of the setting ``span_exporter``: the name of a protocol, or an
    exporter.
    """
    if not isinstance(exporter, str):
        return make_transport(exporter, owned=False)
    configured = make_exporter(_ASKED.get(exporter) or protocol_from_environment())
    transport = make_transport(configured, owned=True)
    if isinstance(transport, GrpcTransport):
        configured.shutdown()  # closes its channel, since ours has other bounds
    return transport


def protocol_from_environment() -> str:
    """The protocol in ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`` or ``OTEL_EXPORTER_OTLP_PROTOCOL``.

    Raises:
        ValueError: one that we don't have.
    """
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    asked = next(filter(None, map(os.environ.get, variables)), DEFAULT_PROTOCOL)
    protocol = _IN_ENVIRONMENT.get(asked.strip())
    if protocol is None:
        raise ValueError(
            f"the protocol {asked!r} is not there; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to grpc"
            " or http/protobuf"
        )
    return protocol


def official_protocol(exporter: object) -> str | None:
    """The protocol of an official exporter of spans, or of a subclass; None for any other."""
    modules = [f"{kind.__module__}." for kind in type(exporter).__mro__]
    found = [
        each
        for module in modules
        for each in (HTTP, GRPC)
        if module.startswith(f"{PACKAGE}{each}.trace_exporter.")
    ]
    return found[0] if found else None


def make_exporter(protocol: str) -> Any:
    """An exporter configured by the environment."""
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as OverHttp,
        )

        return OverHttp()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc()


def make_transport(exporter: Any, owned: bool) -> Transport:
    """The transport that sends requests as the exporter would.

    Raises:
        UnreadableExporterError: it is none, or it isn't known how to read it.
    """
    protocol = official_protocol(exporter)
    if protocol is None:
        raise UnreadableExporterError(
            f"{type(exporter).__qualname__} is none of the official OTLP exporters of spans"
        )
    try:
        return HttpTransport(exporter, owned) if protocol == HTTP else GrpcTransport(exporter)
    except AttributeError as error:
        raise UnreadableExporterError(
            f"this version of {type(exporter).__qualname__} is not known: {error}"
        ) from error


def _content(response: Any) -> bytes:
    """The beginning of an answer; nothing where it breaks off, because the status has said what
    counts.
    """
    try:
        content: bytes = response.raw.read(MAX_ANSWER, decode_content=True)
    except Exception:
        return b""
    return content


def _taken(answer: bytes, hidden: Sequence[str]) -> Outcome:
    """The outcome of a request that a server took, but perhaps not all of its spans."""
    try:
        partial_success = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return Outcome(Verdict.TAKEN)
    return Outcome(
        Verdict.TAKEN,
        safe_text(partial_success.error_message, hidden),
        max(0, partial_success.rejected_spans),
    )


def retry_info_s(details: str | bytes) -> float | None:
    """The delay in a ``google.rpc.Status``; None if it has none."""
    info = RetryInfo()
    try:
        found = any(each.Unpack(info) for each in Status.FromString(details).details)
    except (DecodeError, TypeError):
        return None
    return (
        _limited_delay(info.retry_delay.seconds + info.retry_delay.nanos / 1e9) if found else None
    )


def retry_after_s(header: str | None) -> float | None:
    """The delay in a ``Retry-After`` in seconds; None for anything else, as a date."""
    return (
        _limited_delay(float(header)) if header is not None and header.strip().isdecimal() else None
    )


def _limited_delay(delay_s: float) -> float:
    return min(max(0.0, delay_s), MAX_DELAY_S)
