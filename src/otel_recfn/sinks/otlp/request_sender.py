"""Requests that wait, bounded in bytes, and the threads that send them, each one request at a time until the server answers.

    put ──► queue ──► sending thread, two of them ──► taken, or refused: counted
              │             ▲    │
              ▼             └────┘ the same bytes again, after a pause
     full: the oldest go

Nobody waits in ``put``. A pause is one for both threads, since all requests go to one place.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn import _native
from otel_recfn.sinks.gzip_stream import GZIP_BITS, deflate
from otel_recfn.sinks.otlp.requests import Request
from otel_recfn.sinks.otlp.transports import Outcome, Transport, Verdict
from otel_recfn.sinks.task_queue import Flush, TaskQueue
from otel_recfn.support.own_thread import OwnThread, at_work
from otel_recfn.support.safe_text import safe_request_error

_logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FACTOR, JITTER = 1.5, 0.5
MOST_ADDED = 0.1
"""Of the pause that a server asks for, how much longer it may become by chance."""
PAUSE_AFTER_ERROR_S = 0.1
CONCURRENT = 2
"""Requests at once: while one waits for its answer, or for the GIL, the other is on its way."""
FAILURES = 2
"""What has failed so often can be sent again, but nobody waits for that any more."""
FASTEST = 1
_chance = random.SystemRandom().random
"""From 0 to 1. Not Python's own numbers by chance, which the program seeds and draws from."""


def pauses() -> Iterator[float]:
    """Seconds before a request is sent again: ever longer, and by chance, so that not all clients come back at once."""
    for number in itertools.count():
        pause_s = min(FIRST_PAUSE_S * FACTOR ** min(number, 50), LONGEST_PAUSE_S)
        yield pause_s * (1 - JITTER + 2 * JITTER * _chance())


@dataclass
class Counts:
    """Of spans."""

    exported: int = 0
    rejected: int = 0
    """The server took their request and said that it doesn't take them."""
    refused: int = 0
    """The server refused their request, and would again."""
    crowded_out: int = 0
    """The queue was full."""

    @property
    def lost(self) -> int:
        """Spans that nobody will take."""
        return self.rejected + self.refused + self.crowded_out


class RequestSender:
    """To one place.

    Args:
        transport: sends them.
        queue_bytes: of all requests together.
    """

    def __init__(self, transport: Transport, queue_bytes: int) -> None:
        self._transport = transport
        self._queue: TaskQueue[Request] = TaskQueue(queue_bytes, attrgetter("size"), goes_first=lambda _request: True)
        self._threads = [OwnThread(self._run, f"otel-recfn otlp {number + 1}") for number in range(CONCURRENT)]
        self._changed = threading.Condition()
        self._pauses = pauses()
        self._not_before = self._server_not_before = 0.0
        """When the next attempt may be made: as our pauses say, and as the server does."""
        self._failures = 0
        """Attempts since one was answered."""
        self._ended = self._is_over = False
        """Nothing more is sent; nothing more counts."""
        self._told: set[str] = set()
        """What was logged already."""
        self.counts = Counts()

    def put(self, request: Request) -> None:
        """Add a request; the oldest ones go where there is no room for it."""
        for thread in self._threads:
            if thread.ident is None:
                with contextlib.suppress(RuntimeError):  # no more threads here: the next request tries again
                    thread.start()
        dropped = self._queue.put(request)
        if dropped:
            self.counts.crowded_out += sum(each.spans for each in dropped)
            self._tell_once("crowded out", "the oldest requests go, as no more wait than fit into the queue; they are counted")

    @property
    def queue_bytes(self) -> int:
        """In the queue, with the requests that are being sent."""
        return self._queue.weight

    @property
    def has_failed(self) -> bool:
        """Whether the server has failed several times, one after the other."""
        return self._failures >= FAILURES

    @property
    def is_behind(self) -> bool:
        """Whether the server takes requests, but more slowly than they come: half of the queue is full."""
        return self._queue.is_filling and not self._failures

    def wait_for_room(self, timeout_s: float) -> None:
        """Until the queue is half empty."""
        self._queue.wait_for_room(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Send all that was put, now, unless the server wants to be left alone; False where that isn't done in time."""
        if all(thread.ident is None for thread in self._threads):
            return self._queue.is_empty
        flush = self._queue.put_flush(timeout_s)
        with self._changed:
            self._not_before = 0.0
            self._pauses = pauses()  # a channel of gRPC may need a moment more until it has found its server again
            self._changed.notify_all()
        if flush is None:
            return False
        flushed = flush.wait()
        if not flushed:
            self._queue.forget(flush)  # else those of a server that is down for long would pile up
        return flushed

    def end(self, timeout_s: float) -> None:
        """Send no more. Attempts that are being made are waited for so long; after that they don't count."""
        self._queue.end()
        self._queue.clear()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.wait_for_end(timeout_s)
        with self._changed:
            self._is_over = True
        self._transport.close()

    def _run(self) -> None:
        with suppress_instrumentation():
            while not self._queue.has_ended:
                try:
                    self._do_next()
                except (Exception, SystemExit) as error:  # of an adapter of the program's, or for want of memory
                    self._tell_once("raised", f"sending raised {safe_request_error(error, self._transport.hidden)}")
                    time.sleep(PAUSE_AFTER_ERROR_S)

    def _do_next(self) -> None:
        task = self._queue.next()
        if isinstance(task, Flush):
            task.do(lambda _timeout_s: True)
        elif task is not None:
            self._deliver(task)

    def _deliver(self, request: Request) -> None:
        """Send a request and count what became of it; what raises is refused."""
        try:
            outcome = self._answer(request.body)
        except BaseException:
            self._count(request, Outcome(Verdict.REFUSED))
            raise
        self._count(request, outcome)

    def _answer(self, body: bytes) -> Outcome:
        """Of the attempt that the server answers; where no more is sent, that there is none."""
        with at_work():
            body = _compressed(body, self._transport.encoding)
        while self._waits_for_turn():
            with at_work():
                outcome = self._transport.send(body)
                if not self._is_over:  # else its connection was closed under it
                    self._tell(outcome)
            self._note(outcome)
            if outcome.verdict is not Verdict.AGAIN:
                return outcome
        return Outcome(Verdict.AGAIN)

    def _waits_for_turn(self) -> bool:
        """Until the server may be asked; false where no more is sent."""
        with self._changed:
            while not self._ended and (pause_s := self._pause_s()) > 0:
                self._changed.wait(pause_s)
            return not self._ended

    def _pause_s(self) -> float:
        return max(self._not_before, self._server_not_before) - time.monotonic()

    def _note(self, outcome: Outcome) -> None:
        """After an attempt: when the next one may be."""
        with self._changed:
            if outcome.verdict is not Verdict.AGAIN:
                self._failures, self._pauses = 0, pauses()
                return
            self._failures += 1
            now = time.monotonic()
            if outcome.delay_s is None:
                self._not_before = max(self._not_before, now + next(self._pauses))
            else:
                self._server_not_before = max(self._server_not_before, now + outcome.delay_s * (1 + MOST_ADDED * _chance()))

    def _count(self, request: Request, outcome: Outcome) -> None:
        with self._changed:
            if self._is_over:
                return
            if outcome.verdict is Verdict.REFUSED:
                self.counts.refused += request.spans
            elif outcome.verdict is Verdict.TAKEN:
                rejected = min(outcome.rejected, request.spans)
                self.counts.exported += request.spans - rejected
                self.counts.rejected += rejected

    def _tell(self, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.AGAIN:
            self._tell_once("again", f"{outcome.message}; it is tried again, and what there is no room for is counted")
        elif outcome.verdict is Verdict.REFUSED:
            self._tell_once("refused", f"{outcome.message}; such requests are not sent again, and counted")
        elif outcome.rejected or outcome.message:
            self._tell_once("rejected", f"{outcome.rejected} spans of a request were rejected: {outcome.message}")

    def _tell_once(self, what: str, message: str) -> None:
        with self._changed:
            is_new = what not in self._told
            self._told.add(what)
        if is_new:
            _logger.warning("otel-recfn: spans to %s: %s", self._transport.where, message)


def _compressed(body: bytes, encoding: str) -> bytes:
    if not encoding:
        return body
    bits = GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS
    packer: Any = deflate.compressobj(FASTEST, zlib.DEFLATED, bits)
    compressed: bytes = packer.compress(body) + packer.flush()
    _native.zero_upper_vectors()
    return compressed
