"""The delivery of encoded spans: filled into requests, which are queued and sent to the server.

    send ──► a request is filled ──► queue ──► sending threads: two ──► taken or refused: counted
                                       │             ▲    │
                                       ▼             └────┘ the same bytes again, after a pause
                             full: the oldest go

    spans = exported + failed + dropped.queue_full + dropped.shutdown + those that wait

Who sends waits for no network.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import TracerProvider

from otel_recfn import _native
from otel_recfn.errors import SettingError
from otel_recfn.sinks.gzip_stream import GZIP_BITS, deflate
from otel_recfn.sinks.otlp.encoding import (
    EncodedSpans,
    OtlpMapper,
    Request,
    RequestBuilder,
    as_encoded,
    with_launch,
)
from otel_recfn.sinks.otlp.transports import (
    Outcome,
    Transport,
    UnreadableExporterError,
    Verdict,
    transport_for,
)
from otel_recfn.sinks.protocol import NO_MEMORY
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.span_target import SpanTarget
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.forks import OwnThread, at_work, resting
from otel_recfn.support.interruptions import ignoring_errors
from otel_recfn.support.logs import GuardedLog
from otel_recfn.support.safe_texts import (
    safe_repr,
    safe_request_error,
    safe_text,
    secrets_from_environment,
)

_logger = GuardedLog(logging.getLogger(__name__), {})

LINGER_S = 1.0
"""The seconds that spans wait for a request to be full."""
ROOM_SECONDS = 1.0
"""The seconds that a slow server is waited for if half of the queue is full."""
LAST_SEND_S = 0.2
"""The seconds that each attempt under way is waited for at the end."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FACTOR, JITTER = 1.5, 0.5
PAUSE_AFTER_ERROR_S = 0.1
CONCURRENT = 2
"""The requests at once: while one waits for its answer, or for the GIL, the other is on its way."""
FAILURES = 2
"""The failures after which nobody waits for the server any more, though it may be tried again."""
FASTEST = 1
_chance = random.SystemRandom().random
"""A chance from 0 to 1. The program seeds Python's own random numbers and draws from them."""


class OtlpDelivery:
    """The OTLP delivery of one sink in one process.

    ``request_bytes`` is the size of a request before it is compressed.
    """

    chunk_size = 1 << 15
    needs_processors = False

    def __init__(
        self,
        transport: Transport,
        request_bytes: int,
        queue_bytes: int,
        provider: TracerProvider | None = None,
    ) -> None:
        self.provider = provider
        self._transport, self._request_bytes, self._queue_bytes = (
            transport,
            request_bytes,
            queue_bytes,
        )
        self._sender = RequestSender(transport, queue_bytes)
        self._target: SpanTarget | None = None
        """The target whose spans these are."""
        self._resource: Any = None
        self._builder: RequestBuilder | None = None
        self._spans = self._unsendable = 0
        """Counts of spans: all, and those with which something was raised before they were in a
        request.
        """
        self._ended = False

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """An encoder of spans."""
        return OtlpMapper(target)

    def use(self, target: SpanTarget) -> None:
        """Take spans of this target, and of the resource that it has now, from here on."""
        if target is self._target and target.resource is self._resource:
            return
        self._seal()
        resource = target.resource
        self._builder = RequestBuilder(with_launch(resource), target.scope, self._request_bytes)
        self._target, self._resource = target, resource

    def send(self, spans: Sequence[Any]) -> None:
        """Put spans into requests, and queue the requests that are full or old.

        A server that takes requests, but slower than they come, is waited for a little.
        """
        if self._sender.is_behind:
            with resting():
                self._sender.queue.wait_for_room(ROOM_SECONDS)
        self._spans += len(spans)
        remaining: Sequence[Any] | EncodedSpans = spans
        try:
            remaining = as_encoded(spans)
            while len(remaining) and self._builder is not None:
                remaining = self._builder.add(remaining)
                if len(remaining):
                    self._seal()
            if self._builder is not None and self._builder.age() >= LINGER_S:
                self._seal()
        except BaseException:  # there is no memory, say
            self._unsendable += len(remaining)
            raise

    def flush(self, timeout_s: float) -> bool:
        """Send everything now; False if that isn't done in time."""
        self._seal()
        return self._sender.flush(timeout_s)

    @property
    def has_failed(self) -> bool:
        """Whether the server has failed several times in a row, after which waiting for it is of
        no use.
        """
        return self._sender.failures >= FAILURES

    def remove(self, process_ends: bool) -> None:
        """End the sending. What was not sent is dropped and counted."""
        if self._ended:
            return
        self._ended = True
        self._sender.end(LAST_SEND_S)
        unsent = self.counters()["dropped.shutdown"]
        if unsent:
            _logger.warning(
                "otel-recfn: %d spans were not sent in the time that there was at the end", unsent
            )

    def counters(self) -> Mapping[str, int]:
        """The counts of spans, which add up as the module's docstring says."""
        sender = self._sender
        counted = {
            "exported": sender.exported,
            "failed": sender.failed + self._unsendable,
            "dropped.queue_full": sender.queue_full,
        }
        return {
            **counted,
            "dropped.shutdown": self._spans - sum(counted.values()) if self._ended else 0,
        }

    def after_fork_in_child(self) -> OtlpDelivery:
        """A delivery with connections of its own; what waits in this one belongs to the parent."""
        self._ended = True
        return OtlpDelivery(
            self._transport.in_child(), self._request_bytes, self._queue_bytes, self.provider
        )

    def _seal(self) -> None:
        """Queue the request that is being filled."""
        if self._builder is not None and self._builder.spans:
            self._sender.put(self._builder.take())


def otlp_delivery(
    exporter: Any, request_bytes: int, queue_bytes: int, provider: TracerProvider | None = None
) -> OtlpDelivery | None:
    """The delivery for a value of the setting; None for the provider's processors, also if an
    exporter is unreadable.

    Raises:
        SettingError: it can't be had as it was asked for.
    """
    if exporter is None:
        return None
    try:
        return OtlpDelivery(transport_for(exporter), request_bytes, queue_bytes, provider)
    except UnreadableExporterError as error:
        _logger.warning(
            "otel-recfn: span_exporter: %s; spans go through the provider's span processors", error
        )
        return None
    # An official exporter raises if the environment has what it doesn't know.
    except Exception as error:
        text = safe_text(error, secrets_from_environment())
        raise SettingError(f"span_exporter={safe_repr(exporter)}: {text}") from None


class RequestSender:
    """A bounded queue of requests, and the threads that send them to one place."""

    def __init__(self, transport: Transport, queue_bytes: int) -> None:
        self._transport = transport
        self.queue: TaskQueue[Request] = TaskQueue(
            queue_bytes, weigh=lambda request: len(request.body)
        )
        self._threads = [
            OwnThread(self._run, f"otel-recfn otlp {number + 1}") for number in range(CONCURRENT)
        ]
        self._changed = threading.Condition()
        self.failures = self._pauses = 0
        """The attempts since the last one that was answered; the pauses since then, or since the
        last flush.
        """
        self._ended = False
        """Whether nothing more is sent."""
        self._logged: set[str] = set()
        """The messages that were logged."""
        self.exported = self.failed = self.queue_full = 0
        """Counts of spans."""

    def put(self, request: Request) -> None:
        """Add a request; the oldest ones are dropped if there is no room for it."""
        for thread in self._threads:
            if thread.ident is None:
                # No thread can be started: the next request tries again.
                with contextlib.suppress(RuntimeError):
                    thread.start()
        try:
            dropped = self.queue.put(request)
        except NO_MEMORY:
            self._count(request, Outcome(Verdict.REFUSED))
            raise
        if dropped:
            self.queue_full += sum(each.spans for each in dropped)
            self._log_once(
                "queue full",
                "the oldest requests go, as no more wait than fit into the queue; they are counted",
            )

    @property
    def is_behind(self) -> bool:
        """Whether the server takes requests more slowly than they come: half of the queue is
        full.
        """
        return self.queue.is_filling and not self.failures

    def flush(self, timeout_s: float) -> bool:
        """Send all that was put, now, unless the server asked for a pause; False if that isn't
        done in time.
        """
        if all(thread.ident is None for thread in self._threads):
            return self.queue.is_empty
        flush = self.queue.put_flush(timeout_s)
        self._go_on(answered=False)
        return flush is not None and self.queue.wait_for(flush)

    def end(self, timeout_s: float) -> None:
        """Send no more. Attempts under way are waited for so long."""
        self.queue.end()
        self.queue.clear()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.wait_for_end(timeout_s)
        self._transport.close()

    def _run(self) -> None:
        with suppress_instrumentation():
            while not self.queue.has_ended:
                try:
                    task = self.queue.next()
                    if isinstance(task, Flush):
                        task.do(lambda _timeout_s: True)
                    elif task is not None:
                        self._deliver(task)
                # An adapter of the program's may raise, or memory runs out.
                except BaseException as error:
                    with ignoring_errors():  # there may be no memory for it
                        self._log_once(
                            "raised",
                            f"sending raised {safe_request_error(error, self._transport.hidden)}",
                        )
                    time.sleep(PAUSE_AFTER_ERROR_S)

    def _deliver(self, request: Request) -> None:
        """Send a request until the server answers, and count the result; an error counts as
        refused.
        """
        outcome = Outcome(Verdict.REFUSED)
        try:
            with at_work():
                body = _compressed(request.body, self._transport.encoding)
            outcome = Outcome(Verdict.AGAIN)
            while not self._ended:
                outcome = Outcome(Verdict.REFUSED)
                with at_work():
                    outcome = self._transport.send(body)
                    if not self._ended:  # else its connection was closed under it
                        self._log_outcome(outcome)
                if outcome.verdict is not Verdict.AGAIN:
                    self._go_on(answered=True)
                    break
                self._pause(outcome.delay_s)
        finally:
            self._count(request, outcome)

    def _pause(self, asked_s: float | None) -> None:
        """Wait as long as the server asks; else ever longer, but only until the next answer or
        flush.
        """
        with self._changed:
            self.failures += 1
            self._pauses += 1
            seconds = pause_s(self._pauses) if asked_s is None else asked_s
            self._changed.wait_for(
                lambda: self._ended or (asked_s is None and not self._pauses), seconds
            )

    def _go_on(self, *, answered: bool) -> None:
        """End the pauses after failures, which a flush doesn't forget: at the end nobody waits
        for a server that is down.
        """
        with self._changed:
            if answered:
                self.failures = 0
            self._pauses = 0
            self._changed.notify_all()

    def _count(self, request: Request, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.AGAIN:
            return
        failed = min(outcome.rejected, request.spans)
        if outcome.verdict is Verdict.REFUSED:
            failed = request.spans
        with self._changed:
            self.failed += failed
            self.exported += request.spans - failed

    def _log_outcome(self, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.AGAIN:
            self._log_once(
                "again",
                f"{outcome.message}; it is tried again, and what there is no room for is counted",
            )
        elif outcome.verdict is Verdict.REFUSED:
            self._log_once(
                "refused", f"{outcome.message}; such requests are not sent again, and counted"
            )
        elif outcome.rejected or outcome.message:
            self._log_once(
                "rejected",
                f"{outcome.rejected} spans of a request were rejected: {outcome.message}",
            )

    def _log_once(self, what: str, message: str) -> None:
        with self._changed:
            is_new = what not in self._logged
            self._logged.add(what)
        if is_new:
            _logger.warning("otel-recfn: spans to %s: %s", self._transport.where, message)


def pause_s(pauses: int) -> float:
    """Seconds before a request is sent again: ever longer, and by chance, so that not all
    clients come back at once.
    """
    longest_s = min(FIRST_PAUSE_S * FACTOR ** min(pauses - 1, 50), LONGEST_PAUSE_S)
    return longest_s * (1 - JITTER + 2 * JITTER * _chance())


def _compressed(body: bytes, encoding: str) -> bytes:
    if not encoding:
        return body
    bits = GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS
    packer: Any = deflate.compressobj(FASTEST, zlib.DEFLATED, bits)
    compressed: bytes = packer.compress(body) + packer.flush()
    _native.zero_upper_vectors()
    return compressed
