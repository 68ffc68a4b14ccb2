"""Encoded spans to requests to a queue, and what became of them.

spans = exported + failed + dropped.queue_full + dropped.shutdown + those that wait
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from otel_recfn.sinks.otlp.encoded import encoded
from otel_recfn.sinks.otlp.envelope import Envelope, RequestBuilder
from otel_recfn.sinks.otlp.launch import with_launch
from otel_recfn.sinks.otlp.outcome import OpensTransports, Transport
from otel_recfn.sinks.otlp.request_queue import RequestQueue
from otel_recfn.sinks.otlp.senders import Senders
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.support.own_thread import resting

_logger = logging.getLogger(__name__)

LINGER_S = 1.0
"""So long spans wait for a request to be full."""
ROOM_SECONDS = 1.0
"""So long a server that takes requests is waited for where half of the queue is full."""
FAILURES = 2
LAST_SENDS_S = 0.2
"""How long threads are waited for whose queue has ended."""


class OtlpDelivery:
    """Of one sink in one process.

    Args:
        opens: opens the transport with the first request.
        request_bytes: of a request, before it is compressed.
        queue_bytes: of all requests that wait.
    """

    chunk_size = 1 << 15

    def __init__(self, opens: OpensTransports, request_bytes: int, queue_bytes: int) -> None:
        self._opens, self._request_bytes = opens, request_bytes
        self._queue = RequestQueue(queue_bytes)
        self._transport: Transport | None = None
        self._senders: Senders | None = None
        self._target: SpanTarget | None = None
        self._resource: Any = None
        self._builder: RequestBuilder | None = None
        self._spans = 0
        self._pid = os.getpid()
        self._ended = self._logged = False

    def use(self, target: SpanTarget) -> None:
        """Spans are of this target, and of the resource that it has now, from here on."""
        if target is self._target and target.resource is self._resource:
            return
        self._seal()
        resource = target.resource
        builder = RequestBuilder(Envelope(with_launch(resource), target.scope), self._request_bytes)
        self._target, self._resource, self._builder = target, resource, builder

    def make_room(self, spans: int) -> None:
        """A server that takes requests, but slower than they come, is waited for a little."""
        if not self._queue.has_room():
            with resting():
                self._queue.wait_for_room(ROOM_SECONDS)

    def send(self, spans: Sequence[Any]) -> None:
        """Put spans into requests, and those that are full, or old, into the queue."""
        self._spans += len(spans)
        rest = encoded(spans)
        while len(rest) and self._builder is not None:
            fitting, rest = self._builder.fitting(rest)
            self._builder.add(fitting)
            if len(rest):
                self._seal()
        self.idle()

    def idle(self) -> None:
        """Send what has waited for long."""
        if self._builder is not None and self._builder.age() >= LINGER_S:
            self._seal()

    def flush(self, timeout_s: float) -> bool:
        """Send all, now; False where that is not done in time."""
        self._seal()
        if self._senders is None:
            return True
        self._queue.ask_now()
        return self._queue.wait_until_empty(timeout_s)

    @property
    def has_failed(self) -> bool:
        """Whether the server has failed several times, one after the other: what failed once can be sent again."""
        return self._queue.failures >= FAILURES

    @property
    def lost(self) -> int:
        """Spans that nobody will take."""
        return self._queue.counts.lost

    @property
    def exports_here(self) -> bool:
        """Never: no exporter of the program's is called."""
        return False

    def remove(self, process_ends: bool) -> None:
        """End the threads. What they have not sent is lost, and counted. In a forked child all of it belongs to the parent."""
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        self._queue.end()
        if self._senders is not None:
            self._senders.wait_for_end(LAST_SENDS_S)
        unsent = self._queue.spans + (self._builder.spans if self._builder is not None else 0)
        (self._transport or self._opens).close()
        if unsent:
            _logger.warning("otel-recfn: %d spans were not sent in the time that there was at the end", unsent)

    def counters(self) -> Mapping[str, int]:
        """What became of the spans; the module's docstring says how the counts add up."""
        counts = self._queue.counts
        told = {
            "exported": counts.exported,
            "failed": counts.rejected + counts.refused,
            "dropped.queue_full": counts.crowded_out,
        }
        return {**told, "dropped.shutdown": self._spans - sum(told.values()) if self._ended else 0}

    def _seal(self) -> None:
        """Queue the request that is being filled."""
        if self._builder is None or not self._builder.spans:
            return
        self._start_senders()
        request, following = self._builder.request(), self._builder.next()
        self._queue.put(request)
        self._builder = following
        self._tell_of_losses()

    def _start_senders(self) -> None:
        if self._senders is None:
            self._transport = self._transport or self._opens()
            self._senders = Senders(self._queue, self._transport)
        self._senders.start()

    def _tell_of_losses(self) -> None:
        if self._queue.counts.crowded_out and not self._logged:
            self._logged = True
            _logger.warning(
                "otel-recfn: the oldest requests go, because no more wait than fit into the queue; they are counted"
            )
