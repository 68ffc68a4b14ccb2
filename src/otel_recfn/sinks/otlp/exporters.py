"""The setting ``span_exporter``: the delivery of spans in place of the provider's processors.

"otlp"                    as OTEL_EXPORTER_OTLP_* says
"otlp-grpc", "otlp-http"  the same, of that protocol
an exporter object        as that one was configured; it is not called
"""

from __future__ import annotations

import logging
import os
from typing import Any

from opentelemetry.trace import TracerProvider

from otel_recfn.errors import SettingError
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.transports import GrpcTransport, HttpTransport, Transport
from otel_recfn.support.texts import safe_text, secrets_from_environment

_logger = logging.getLogger(__name__)

PACKAGE = "opentelemetry.exporter.otlp.proto."
HTTP, GRPC = "http", "grpc"
_ASKED = {"otlp-grpc": GRPC, "otlp-http": HTTP}
_IN_ENVIRONMENT = {"grpc": GRPC, "http/protobuf": HTTP}
DEFAULT_PROTOCOL = "grpc"
"""The protocol of ``otlp`` if no variable names one, as in the SDK."""


class UnreadableExporterError(Exception):
    """An exporter that isn't known here, or keeps its settings elsewhere."""


def otlp_delivery(
    exporter: Any, request_bytes: int, queue_bytes: int, provider: TracerProvider | None = None
) -> OtlpDelivery | None:
    """The delivery for a value of the setting; None for the provider's processors, also if an exporter is unreadable.

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
    except Exception as error:  # an official exporter raises if the environment has what it doesn't know
        text = safe_text(error, secrets_from_environment())
        raise SettingError(f"span_exporter={safe_text(repr(exporter))}: {text}") from None


def _transport(exporter: Any) -> Transport:
    if not isinstance(exporter, str):
        return transport_of(exporter, owned=False)
    configured = made(_ASKED.get(exporter) or protocol_from_environment())
    transport = transport_of(configured, owned=True)
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
            f"the protocol {asked!r} is not there; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to grpc or http/protobuf"
        )
    return protocol


def protocol_of(exporter: object) -> str | None:
    """The protocol of an official exporter of spans, or of a subclass; None for any other."""
    return next(filter(None, map(_protocol_of_class, type(exporter).__mro__)), None)


def _protocol_of_class(kind: type) -> str | None:
    for protocol in (HTTP, GRPC):
        if f"{kind.__module__}.".startswith(f"{PACKAGE}{protocol}.trace_exporter."):
            return protocol
    return None


def made(protocol: str) -> Any:
    """An exporter configured by the environment.

    Raises:
        ImportError: its package isn't installed.
    """
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc()


def transport_of(exporter: Any, owned: bool) -> Transport:
    """The transport that sends requests as the exporter would.

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
        return HttpTransport(exporter, owned) if protocol == HTTP else GrpcTransport(exporter)
    except AttributeError as error:
        raise UnreadableExporterError(f"this version of {type(exporter).__qualname__} is not known: {error}") from error
