"""What the official exporters were configured with: an exporter object of the program's, or one that is made for its reading of
``OTEL_EXPORTER_OTLP_*``.

This is the one place that knows their insides. What is read that they don't promise, pinned by
``tests/unit/sinks/otlp/test_official_exporters.py``; where it is missing there is no way around the processors:

    HTTP   _endpoint, _compression; _client._headers, ._timeout, ._transport._session
           (before there was a _client: _headers, _timeout, _session)
    gRPC   _endpoint, _insecure, _credentials, _channel_options, _headers, _timeout, _compression
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from otel_recfn.sinks.otlp.transports import GrpcTransport, HttpTransport
from otel_recfn.support.safe_text import secrets_of

PACKAGE = "opentelemetry.exporter.otlp.proto."
HTTP, GRPC = "http", "grpc"
_PROTOCOLS = {"grpc": GRPC, "http/protobuf": HTTP}
DEFAULT_PROTOCOL = "grpc"
"""What the SDK takes ``otlp`` for where no variable says otherwise."""


class UnreadableExporterError(Exception):
    """The exporter isn't one of those that are known here, or it keeps its settings elsewhere."""


def protocol_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """As ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`` and ``OTEL_EXPORTER_OTLP_PROTOCOL`` say.

    Raises:
        ValueError: one that we don't have.
    """
    found = os.environ if environment is None else environment
    asked = found.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or found.get("OTEL_EXPORTER_OTLP_PROTOCOL") or DEFAULT_PROTOCOL
    protocol = _PROTOCOLS.get(asked.strip())
    if protocol is None:
        raise ValueError(
            f"the protocol {asked!r} is not there; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to grpc or http/protobuf"
        )
    return protocol


def secrets_from_environment() -> tuple[str, ...]:
    """What of ``OTEL_EXPORTER_OTLP_*`` is to be in no text."""
    headers = [text.partition("=") for setting in _variables("HEADERS") for text in setting.split(",")]
    named = [(name.strip(), value) for name, _, value in headers]
    return tuple([secret for endpoint in (*_variables("ENDPOINT"), "") for secret in secrets_of(endpoint, named)])


def _variables(name: str) -> list[str]:
    found = [os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}{name}") for signal in ("TRACES_", "")]
    return [each for each in found if each]


def protocol_of(exporter: object) -> str | None:
    """Of one of the official exporters of spans, or of a subclass; None for any other."""
    return next(filter(None, map(_protocol_of_class, type(exporter).__mro__)), None)


def is_official(exporter: object) -> bool:
    """Whether it is one of the official exporters itself: a subclass may look at spans, or change them."""
    return _protocol_of_class(type(exporter)) is not None


def _protocol_of_class(kind: type) -> str | None:
    for protocol in (HTTP, GRPC):
        if f"{kind.__module__}.".startswith(f"{PACKAGE}{protocol}.trace_exporter."):
            return protocol
    return None


def made(protocol: str) -> Any:
    """An exporter that has read the environment.

    Raises:
        ImportError: its package isn't installed.
    """
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc()


def transport_of(exporter: Any, owned: bool) -> HttpTransport | GrpcTransport:
    """What sends requests as the exporter would, to where it does.

    Args:
        exporter: one of the official ones.
        owned: whether nobody else uses it.

    Raises:
        UnreadableExporterError: it is none, or it isn't known how to read it.
    """
    protocol = protocol_of(exporter)
    if protocol is None:
        raise UnreadableExporterError(f"{type(exporter).__qualname__} is none of the official OTLP exporters of spans")
    try:
        return _over_http(exporter, owned) if protocol == HTTP else _over_grpc(exporter)
    except AttributeError as error:
        raise UnreadableExporterError(f"this version of {type(exporter).__qualname__} is not known: {error}") from error


def _over_http(exporter: Any, owned: bool) -> HttpTransport:
    client = getattr(exporter, "_client", exporter)
    session = client._transport._session if hasattr(client, "_transport") else exporter._session
    encoding = exporter._compression.value
    return HttpTransport(
        exporter._endpoint,
        dict(client._headers),
        float(client._timeout),
        "" if encoding == "none" else encoding,
        session,
        owned,
    )


def _over_grpc(exporter: Any) -> GrpcTransport:
    return GrpcTransport(
        exporter._endpoint,
        None if exporter._insecure else exporter._credentials,
        tuple(exporter._channel_options),
        tuple(exporter._headers),
        float(exporter._timeout),
        exporter._compression,
    )
