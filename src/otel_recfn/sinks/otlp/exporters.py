"""The setting ``span_exporter``: where spans go in place of the provider's processors.

    "otlp"                    as OTEL_EXPORTER_OTLP_* says
    "otlp-grpc", "otlp-http"  the same, of that protocol
    an exporter object        as that one was configured; it is not called

This is the one place that knows the insides of the official exporters: of an object of the program's, or of one that is made
for its reading of the environment. What is read that they don't promise, pinned by ``test_either_way.py``; where it is
missing there is no way around the processors:

    HTTP   _endpoint, _compression; _client._headers, ._timeout, ._transport._session
           (before there was a _client: _headers, _timeout, _session)
    gRPC   _endpoint, _insecure, _credentials, _channel_options, _headers, _timeout, _compression
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import TracerProvider

from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.transports import GrpcTransport, HttpTransport
from otel_recfn.support.texts import safe_text, secrets_from_environment

_logger = logging.getLogger(__name__)

PACKAGE = "opentelemetry.exporter.otlp.proto."
HTTP, GRPC = "http", "grpc"
_ASKED = {"otlp-grpc": GRPC, "otlp-http": HTTP}
_IN_ENVIRONMENT = {"grpc": GRPC, "http/protobuf": HTTP}
DEFAULT_PROTOCOL = "grpc"
"""What the SDK takes ``otlp`` for where no variable says otherwise."""


class UnreadableExporterError(Exception):
    """The exporter isn't one of those that are known here, or it keeps its settings elsewhere."""


def otlp_delivery(
    exporter: Any, request_bytes: int, queue_bytes: int, provider: TracerProvider | None = None
) -> OtlpDelivery | None:
    """For a value of the setting; None for the provider's processors, also where an exporter can't be read, which is logged.

    Args:
        exporter: the value.
        request_bytes, queue_bytes: those settings.
        provider: whose spans they are where the program has no provider.

    Raises:
        SettingError: it can't be had as it was asked for.
    """
    if exporter is None:
        return None
    try:
        return OtlpDelivery(_transport(exporter), request_bytes, queue_bytes, provider)
    except UnreadableExporterError as error:
        _logger.warning("otel-recfn: span_exporter: %s; spans go through the provider's span processors", error)
        return None
    except ImportError as error:
        text = f"span_exporter={safe_text(repr(exporter))} needs {error.name}; install opentelemetry-exporter-otlp"
        raise SettingError(text) from error
    except Exception as error:  # what the official exporters raise where the environment says what they don't know
        text = safe_text(error, secrets_from_environment())
        raise SettingError(f"span_exporter={safe_text(repr(exporter))}: {text}") from None


def _transport(exporter: Any) -> HttpTransport | GrpcTransport:
    if not isinstance(exporter, str):
        return transport_of(exporter, owned=False)
    configured = made(_ASKED.get(exporter) or protocol_from_environment())
    transport = transport_of(configured, owned=True)
    if isinstance(transport, GrpcTransport):
        configured.shutdown()  # its channel; ours has other bounds
    return transport


def protocol_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """As ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`` and ``OTEL_EXPORTER_OTLP_PROTOCOL`` say.

    Raises:
        ValueError: one that we don't have.
    """
    found = os.environ if environment is None else environment
    asked = found.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or found.get("OTEL_EXPORTER_OTLP_PROTOCOL") or DEFAULT_PROTOCOL
    protocol = _IN_ENVIRONMENT.get(asked.strip())
    if protocol is None:
        raise ValueError(
            f"the protocol {asked!r} is not there; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to grpc or http/protobuf"
        )
    return protocol


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
