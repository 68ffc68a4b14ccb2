"""The setting ``span_exporter``: where spans go in place of the provider's processors.

"otlp"                    as OTEL_EXPORTER_OTLP_* says
"otlp-grpc", "otlp-http"  the same, of that protocol
an exporter object        as that one was configured; it is not called
"""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry.trace import TracerProvider

from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.official import (
    GRPC,
    HTTP,
    UnreadableExporterError,
    made,
    protocol_from_environment,
    secrets_from_environment,
    transport_of,
)
from otel_recfn.sinks.otlp.transports import GrpcTransport, Transport
from otel_recfn.support.safe_text import safe_text

_logger = logging.getLogger(__name__)

_PROTOCOLS = {"otlp-grpc": GRPC, "otlp-http": HTTP}


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
    except ImportError as error:
        raise SettingError(
            f"span_exporter={safe_text(repr(exporter))} needs {error.name}; install opentelemetry-exporter-otlp"
        ) from error
    except Exception as error:  # what the official exporters raise where the environment says what they don't know
        text = safe_text(error, secrets_from_environment())
        raise SettingError(f"span_exporter={safe_text(repr(exporter))}: {text}") from None
    return None


def _transport(exporter: Any) -> Transport:
    if not isinstance(exporter, str):
        return transport_of(exporter, owned=False)
    configured = made(_PROTOCOLS.get(exporter) or protocol_from_environment())
    transport = transport_of(configured, owned=True)
    if isinstance(transport, GrpcTransport):
        configured.shutdown()  # its channel; ours has other bounds
    return transport
