"""Encoded spans to requests, and what became of them.

spans = exported + failed + dropped.queue_full + dropped.shutdown + those that wait
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.otlp.encoding import OtlpMapper, encoded
from otel_recfn.sinks.otlp.request_sender import RequestSender
from otel_recfn.sinks.otlp.requests import Envelope, RequestBuilder, with_launch
from otel_recfn.sinks.otlp.transports import Transport
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.support.own_thread import resting

_logger = logging.getLogger(__name__)

LINGER_S = 1.0
"""So long spans wait for a request to be full."""
ROOM_SECONDS = 1.0
"""So long a server that takes requests is waited for where half of the queue is full."""
LAST_SEND_S = 0.2
"""How long attempts that are being made at the end are waited for, each."""


class OtlpDelivery:
    """Of one sink in one process.

    Args:
        transport: sends requests.
        request_bytes: of a request, before it is compressed.
        queue_bytes: of all requests that wait.
        provider: whose spans they are where the program has no provider.
    """

    chunk_size = 1 << 15

    def __init__(
        self, transport: Transport, request_bytes: int, queue_bytes: int, provider: TracerProvider | None = None
    ) -> None:
        self.provider = provider
        self._transport, self._request_bytes, self._queue_bytes = transport, request_bytes, queue_bytes
        self._sender = RequestSender(transport, queue_bytes)
        self._of: SpanTarget | None = None
        """Whose the spans are."""
        self._resource: Any = None
        self._builder: RequestBuilder | None = None
        self._spans = 0
        self._ended = False

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """Spans in bytes."""
        return OtlpMapper(target)

    def use(self, target: SpanTarget) -> None:
        """Spans are of this target, and of the resource that it has now, from here on."""
        if target is self._of and target.resource is self._resource:
            return
        self._seal()
        self._of, self._resource = target, target.resource
        self._builder = RequestBuilder(Envelope(with_launch(target.resource), target.scope), self._request_bytes)

    def send(self, spans: Sequence[Any]) -> None:
        """Put spans into requests, and those that are full, or old, into the queue.

        A server that takes requests, but slower than they come, is waited for a little.
        """
        if self._sender.is_behind:
            with resting():
                self._sender.wait_for_room(ROOM_SECONDS)
        self._spans += len(spans)
        rest = encoded(spans)
        while len(rest) and self._builder is not None:
            rest = self._builder.add(rest)
            if len(rest):
                self._seal()
        if self._builder is not None and self._builder.age() >= LINGER_S:
            self._seal()

    def flush(self, timeout_s: float) -> bool:
        """Send all, now; False where that is not done in time."""
        self._seal()
        return self._sender.flush(timeout_s)

    @property
    def has_failed(self) -> bool:
        """Whether the server has failed several times, one after the other: what failed once can be sent again."""
        return self._sender.has_failed

    def remove(self, process_ends: bool) -> None:
        """End the sending. What was not sent is lost, and counted."""
        if self._ended:
            return
        self._ended = True
        self._sender.end(LAST_SEND_S)
        unsent = self.counters()["dropped.shutdown"]
        if unsent:
            _logger.warning("otel-recfn: %d spans were not sent in the time that there was at the end", unsent)

    def counters(self) -> Mapping[str, int]:
        """What became of the spans; the module's docstring says how the counts add up."""
        counts = self._sender.counts
        told = {
            "exported": counts.exported,
            "failed": counts.rejected + counts.refused,
            "dropped.queue_full": counts.crowded_out,
        }
        return {**told, "dropped.shutdown": self._spans - sum(told.values()) if self._ended else 0}

    def after_fork_in_child(self) -> OtlpDelivery:
        """One with connections of its own; what waits in this one belongs to the parent."""
        self._ended = True
        return OtlpDelivery(self._transport.in_child(), self._request_bytes, self._queue_bytes, self.provider)

    def _seal(self) -> None:
        """Queue the request that is being filled."""
        if self._builder is not None and self._builder.spans:
            self._sender.put(self._builder.take())
