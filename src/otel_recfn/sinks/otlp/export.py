"""The setting ``span_exporter``: where spans go in place of the provider's processors.

"otlp"                    as OTEL_EXPORTER_OTLP_* says
"otlp-grpc", "otlp-http"  the same, of that protocol
"file:PATH"               to a file, as OTLP JSON
an exporter object        as that one was configured; it is not called
"""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry.trace import TracerProvider

from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.file_transport import PREFIX, opens_file
from otel_recfn.sinks.otlp.grpc_transport import GrpcTarget, GrpcTransport
from otel_recfn.sinks.otlp.http_transport import HttpTarget, HttpTransport
from otel_recfn.sinks.otlp.mapper import OtlpMapper
from otel_recfn.sinks.otlp.official import (
    GRPC,
    HTTP,
    UnreadableExporterError,
    made,
    protocol_from_environment,
    secrets_from_environment,
    target_of,
)
from otel_recfn.sinks.otlp.outcome import OpensTransports, Transport
from otel_recfn.sinks.spans.delivery import Delivery, WayOut
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.support.safe_text import safe_text

_logger = logging.getLogger(__name__)

_PROTOCOLS = {"otlp-grpc": GRPC, "otlp-http": HTTP}


class Opens(OpensTransports):
    """Opens the transport that an official exporter stands for.

    Args:
        target: what that one was configured with.
    """

    def __init__(self, target: HttpTarget | GrpcTarget) -> None:
        self._configured = target
        self._target = _with_bounded_session(target) if isinstance(target, HttpTarget) else target

    def __call__(self) -> Transport:
        """In this process."""
        if isinstance(self._target, HttpTarget):
            return HttpTransport(self._target)
        import grpc  # whoever has its exporter has imported it

        return GrpcTransport(self._target, grpc)

    def close(self) -> None:
        """A session of ours has connected to nobody."""
        if isinstance(self._target, HttpTarget) and self._target.owned:
            self._target.session.close()

    def after_fork_in_child(self) -> Opens:
        """A session keeps no connection of the parent's; a channel is opened anew."""
        if isinstance(self._target, HttpTarget):
            self._target.session.close()
        return Opens(self._configured)


def _with_bounded_session(target: HttpTarget) -> HttpTarget:
    from otel_recfn.sinks.otlp.bounded_session import bounded_session  # of requests, which its exporter has imported

    session = bounded_session(target.session)
    return target._replace(session=session, owned=target.owned or session is not target.session)


class OtlpWayOut:
    """Spans in requests of their own.

    Args:
        opens: where to.
        request_bytes: of a request, before it is compressed.
        queue_bytes: of all that wait.
        provider: see WayOut.
    """

    def __init__(
        self, opens: OpensTransports, request_bytes: int, queue_bytes: int, provider: TracerProvider | None = None
    ) -> None:
        self._opens, self._request_bytes, self._queue_bytes, self.provider = opens, request_bytes, queue_bytes, provider

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """Spans in bytes."""
        return OtlpMapper(target)

    def delivery(self) -> Delivery:
        """Through a queue of requests."""
        return OtlpDelivery(self._opens, self._request_bytes, self._queue_bytes)

    def after_fork_in_child(self) -> WayOut:
        """Connections of its own."""
        return OtlpWayOut(self._opens.after_fork_in_child(), self._request_bytes, self._queue_bytes, self.provider)


def way_out(
    exporter: Any, request_bytes: int, queue_bytes: int, provider: TracerProvider | None = None, inherited: bool = False
) -> WayOut | None:
    """For a value of the setting; None for the provider's processors, also where an exporter can't be read, which is logged.

    Args:
        exporter: the value.
        request_bytes, queue_bytes: those settings.
        provider: see WayOut.
        inherited: this process has the settings from its parent: a file is made with the first request.

    Raises:
        SettingError: it can't be had as it was asked for.
    """
    if exporter is None:
        return None
    if isinstance(exporter, str) and exporter.startswith(PREFIX):
        return OtlpWayOut(opens_file(exporter, now=not inherited), request_bytes, queue_bytes, provider)
    try:
        return OtlpWayOut(Opens(_target(exporter)), request_bytes, queue_bytes, provider)
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


def _target(exporter: Any) -> HttpTarget | GrpcTarget:
    if not isinstance(exporter, str):
        return target_of(exporter, owned=False)
    configured = made(_PROTOCOLS.get(exporter) or protocol_from_environment())
    target = target_of(configured, owned=True)
    if isinstance(target, GrpcTarget):
        configured.shutdown()  # its channel; ours has other bounds
    return target
