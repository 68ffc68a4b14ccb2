"""Requests that wait to be sent, bounded in bytes: where there is no room, the oldest whole ones go first.

    put ──► waiting ──take──► being sent ──settle──► gone: taken, or refused
               ▲                  │
               └────── again ─────┘   all wait then, until the server may be asked again

Nobody waits in ``put``. One backoff holds for all requests, since they go to one place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from otel_recfn.sinks.otlp.backoff import Backoff
from otel_recfn.sinks.otlp.envelope import Request
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict


@dataclass
class Counts:
    """Of spans, but for requests and retries."""

    exported: int = 0
    rejected: int = 0
    """The server took their request and said that it doesn't take them."""
    refused: int = 0
    """The server refused their request, and would again."""
    crowded_out: int = 0
    """The queue was full."""
    requests: int = 0
    retries: int = 0


class RequestQueue:
    """Of one destination.

    Args:
        most_bytes: of all requests in it.
        backoff: how long to wait after a failure.
        clock: seconds that only grow.
    """

    def __init__(self, most_bytes: int, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes, self._backoff, self._clock = most_bytes, backoff or Backoff(), clock
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[Request] = []
        """The oldest first."""
        self._sending: list[Request] = []
        self._not_before = 0.0
        self._ended = False
        self.counts = Counts()
        self.bytes = self.spans = 0
        """In it."""

    @property
    def failures(self) -> int:
        """Attempts that failed since one was answered."""
        return self._backoff.failures

    def put(self, request: Request) -> int:
        """Add a request; how many spans had to go for it."""
        with self._changed:
            self._waiting.append(request)
            self.bytes += request.size
            self.spans += request.spans
            crowded_out = self._make_room()
            self._changed.notify_all()
        return crowded_out

    def take(self) -> Request | None:
        """The oldest request, as soon as one may be sent; None when no more will be."""
        with self._changed:
            while not self._ended:
                pause = self._not_before - self._clock()
                if self._waiting and pause <= 0:
                    request = self._waiting.pop(0)
                    self._sending.append(request)
                    return request
                self._changed.wait(pause if self._waiting else None)
        return None

    def settle(self, request: Request, outcome: Outcome) -> None:
        """What became of a request that was taken."""
        with self._changed:
            self._sending.remove(request)
            self.counts.requests += 1
            if outcome.verdict is Verdict.AGAIN:
                self._put_back(request, outcome)
            else:
                self._forget(request)
                self._count(request, outcome)
                self._backoff.reset()
            self._changed.notify_all()

    def compressed(self, request: Request, body: bytes, encoding: str) -> None:
        """A request that is being sent has this body from now on."""
        with self._changed:
            self.bytes += len(body) - request.size
            request.body, request.encoding = body, encoding

    def ask_now(self) -> None:
        """Whatever the last answer was, send the oldest request at once: somebody waits for it."""
        with self._changed:
            self._not_before = 0.0
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether all that is in it now is gone by then."""
        with self._changed:
            return self._changed.wait_for(self._is_empty, max(0.0, timeout_s))

    def has_room(self) -> bool:
        """Whether it is half empty, or nothing can be sent now."""
        return self._ended or self.bytes <= self._most_bytes // 2 or self._not_before > self._clock()

    def wait_for_room(self, timeout_s: float) -> None:
        """Until it is half empty, or the server fails."""
        with self._changed:
            self._changed.wait_for(self.has_room, timeout_s)

    def end(self) -> None:
        """Nothing is sent any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _is_empty(self) -> bool:
        return self._ended or not (self._waiting or self._sending)

    def _put_back(self, request: Request, outcome: Outcome) -> None:
        self.counts.retries += 1
        self._waiting.insert(0, request)
        self._not_before = max(self._not_before, self._clock() + self._backoff.delay_s(outcome.delay_s))
        self._make_room()

    def _count(self, request: Request, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.REFUSED:
            self.counts.refused += request.spans
            return
        rejected = min(outcome.rejected, request.spans)
        self.counts.rejected += rejected
        self.counts.exported += request.spans - rejected

    def _make_room(self) -> int:
        """Those that are being sent stay, because nobody knows yet what becomes of them."""
        crowded_out = 0
        while self.bytes > self._most_bytes and self._waiting:
            oldest = self._waiting.pop(0)
            self._forget(oldest)
            self.counts.crowded_out += oldest.spans
            crowded_out += oldest.spans
        return crowded_out

    def _forget(self, request: Request) -> None:
        self.bytes -= request.size
        self.spans -= request.spans
