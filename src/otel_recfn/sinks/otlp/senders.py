"""Threads that send the requests of a queue, each one at a time, until the queue ends."""

from __future__ import annotations

import contextlib
import logging
import threading
import zlib
from typing import Any

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn import _native
from otel_recfn.sinks.files.text_stream import GZIP_BITS, deflate
from otel_recfn.sinks.otlp.envelope import Request
from otel_recfn.sinks.otlp.outcome import Outcome, Transport, Verdict
from otel_recfn.sinks.otlp.request_queue import RequestQueue
from otel_recfn.support.own_thread import OwnThread, at_work
from otel_recfn.support.safe_text import safe_request_error

_logger = logging.getLogger(__name__)

FASTEST = 1


class Senders:
    """Of one queue.

    Args:
        queue: what to send.
        transport: where to.
    """

    def __init__(self, queue: RequestQueue, transport: Transport) -> None:
        self._queue, self._transport = queue, transport
        self._threads: list[OwnThread] = []
        self._told: set[str] = set()
        """What was logged already."""
        self._telling = threading.Lock()

    def start(self) -> None:
        """Start what isn't running; where there are no more threads, the next call tries again."""
        running = [thread for thread in self._threads if thread.is_alive()]
        self._threads = running
        with contextlib.suppress(RuntimeError):
            while len(running) < self._transport.concurrent:
                thread = OwnThread(self._run, f"otel-recfn otlp {len(running) + 1}")
                thread.start()
                running.append(thread)

    def wait_for_end(self, timeout_s: float) -> None:
        """Once the queue has ended."""
        for thread in self._threads:
            thread.wait_for_end(timeout_s)

    def _run(self) -> None:
        """Until the queue ends."""
        with suppress_instrumentation():
            while (request := self._queue.take()) is not None:
                with at_work():
                    outcome = self._attempt(request)
                    self._queue.settle(request, outcome)
                    self._tell(outcome)

    def _attempt(self, request: Request) -> Outcome:
        """A request that can't be sent, whatever is raised, is refused: it is counted, and the next one is sent."""
        try:
            if self._transport.encoding and not request.encoding:
                body = _compressed(request.body, self._transport.encoding)
                self._queue.compressed(request, body, self._transport.encoding)
            return self._transport.send(request.body)
        except (Exception, SystemExit) as error:  # of an adapter of the program's, say
            message = safe_request_error(error, self._transport.hidden)
            self._tell_once("raised", f"sending raised {message}")
            return Outcome(Verdict.REFUSED, message)

    def _tell(self, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.AGAIN:
            self._tell_once("again", f"{outcome.message}; it is tried again, and what there is no room for is counted")
        elif outcome.verdict is Verdict.REFUSED:
            self._tell_once("refused", f"{outcome.message}; such requests are not sent again, and counted")
        elif outcome.rejected or outcome.message:
            self._tell_once("rejected", f"{outcome.rejected} spans of a request were rejected: {outcome.message}")

    def _tell_once(self, what: str, message: str) -> None:
        with self._telling:
            is_new = what not in self._told
            self._told.add(what)
        if is_new:
            _logger.warning("otel-recfn: spans to %s: %s", self._transport.where, message)


def _compressed(body: bytes, encoding: str) -> bytes:
    bits = GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS
    packer: Any = deflate.compressobj(FASTEST, zlib.DEFLATED, bits)
    compressed: bytes = packer.compress(body) + packer.flush()
    _native.zero_upper_vectors()
    return compressed
