"""Requests over gRPC: raw bytes through a channel of grpcio, whose business TLS, compression and connections are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from otel_recfn.sinks.otlp.answers import partial_success, retry_info_s
from otel_recfn.sinks.otlp.outcome import TOO_LARGE, Outcome, Verdict
from otel_recfn.support.safe_text import safe_endpoint, safe_text, secrets_of

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RETRYABLE = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
RETRYABLE_IF_TOLD = {"RESOURCE_EXHAUSTED"}
"""Only where the server says when: else it means a quota that stays used up, or a message that is too large."""
DETAILS = "grpc-status-details-bin"
RECONNECTS = (
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
"""Else a channel waits for minutes before it tries a server again that has come back."""


class GrpcTarget(NamedTuple):
    """What an exporter for gRPC was configured with."""

    endpoint: str
    credentials: Any
    """None: without TLS."""
    options: tuple[tuple[str, Any], ...]
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float
    compression: Any


class GrpcTransport:
    """To one endpoint."""

    concurrent = 2
    encoding = ""

    def __init__(self, target: GrpcTarget, grpc: Any) -> None:
        self._target, self._error, self.where = target, grpc.RpcError, safe_endpoint(target.endpoint)
        self.hidden = secrets_of(target.endpoint, target.metadata)
        named = {name for name, _ in target.options}
        options = (*target.options, *[(name, value) for name, value in RECONNECTS if name not in named])
        if target.credentials is None:
            self._channel = grpc.insecure_channel(target.endpoint, compression=target.compression, options=options)
        else:
            self._channel = grpc.secure_channel(
                target.endpoint, target.credentials, compression=target.compression, options=options
            )
        self._export = self._channel.unary_unary(METHOD)

    def send(self, body: bytes) -> Outcome:
        """One attempt."""
        try:
            answer = self._export(body, timeout=self._target.timeout_s, metadata=self._target.metadata)
        except self._error as error:
            return _outcome(error, self.hidden)
        told = partial_success(answer)
        return Outcome(Verdict.TAKEN, safe_text(told.message, self.hidden), told.rejected)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


def _outcome(error: Any, hidden: Sequence[str]) -> Outcome:
    code, message = error.code().name, f"gRPC {error.code().name}: {safe_text(error.details(), hidden)}"
    details = dict(error.trailing_metadata() or ()).get(DETAILS, b"")
    delay_s = retry_info_s(details) if isinstance(details, bytes) else None
    if code in RETRYABLE or (code in RETRYABLE_IF_TOLD and delay_s is not None):
        return Outcome(Verdict.AGAIN, message, delay_s=delay_s)
    return Outcome(Verdict.REFUSED, f"{message}: {TOO_LARGE}" if code in RETRYABLE_IF_TOLD else message)
