"""Threads that send the requests of a queue, each one at a time, until the queue ends."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
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
PAUSE_S = 0.1
"""After what raised."""


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
            while not self._queue.has_ended:
                try:
                    self._send_next()
                except (Exception, SystemExit) as error:  # of an adapter of the program's, or for want of memory
                    self._tell_once("raised", f"sending raised {safe_request_error(error, self._transport.hidden)}")
                    time.sleep(PAUSE_S)

    def _send_next(self) -> None:
        request = self._queue.take()
        if request is None:
            return
        with at_work():
            outcome = Outcome(Verdict.REFUSED)
            try:
                outcome = self._attempt(request)
            finally:  # what raised is refused: it is counted, and the next one is sent
                self._queue.settle(request, outcome)
            self._tell(outcome)

    def _attempt(self, request: Request) -> Outcome:
        if self._transport.encoding and not request.encoding:
            body = _compressed(request.body, self._transport.encoding)
            self._queue.compressed(request, body, self._transport.encoding)
        return self._transport.send(request.body)

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
