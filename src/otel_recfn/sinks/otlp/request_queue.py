"""Requests that wait to be sent, bounded in bytes: where there is no room, the oldest go first.

    put ──► waiting ──take──► being sent ──settle──► gone: taken, or refused
               ▲                  │
               └────── again ─────┘   all wait then, until the server may be asked again

Nobody waits in ``put``. One backoff holds for all requests, since they go to one place.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from otel_recfn.sinks.otlp.backoff import Backoff
from otel_recfn.sinks.otlp.envelope import Request
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict


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


class RequestQueue:
    """Of one destination.

    Args:
        most_bytes: of all requests in it.
        backoff: how long to wait after a failure.
        clock: seconds that only grow.
    """

    def __init__(self, most_bytes: int, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._backoff, self._clock = backoff or Backoff(), clock
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        """The oldest first."""
        self._sending: list[Request] = []
        self._not_before = self._server_not_before = 0.0
        """When a request may be sent again: as our backoff says, and as the server does."""
        self._ended = False
        self.counts = Counts()
        self.bytes = self.spans = 0
        """In it."""

    @property
    def failures(self) -> int:
        """Attempts that failed since one was answered."""
        return self._backoff.failures

    def put(self, request: Request) -> None:
        """Add a request; the oldest ones go where there is no room for it."""
        with self._changed:
            self._waiting.append(request)
            self.bytes += request.size
            self.spans += request.spans
            self._make_room()
            self._changed.notify_all()

    def take(self) -> Request | None:
        """The oldest request, as soon as one may be sent; None when no more will be."""
        with self._changed:
            while not self._ended:
                pause = self._pause()
                if self._waiting and pause <= 0:
                    request = self._waiting.popleft()
                    self._sending.append(request)
                    return request
                self._changed.wait(pause if self._waiting else None)
            return None

    def settle(self, request: Request, outcome: Outcome) -> None:
        """What became of a request that was taken."""
        with self._changed:
            self._sending.remove(request)
            if outcome.verdict is Verdict.AGAIN:
                self._wait_after(outcome)
                self._waiting.appendleft(request)
            else:
                self._backoff.reset()
                self.bytes -= request.size
                self.spans -= request.spans
            self._count(request, outcome)
            self._make_room()
            self._changed.notify_all()

    def compressed(self, request: Request, body: bytes, encoding: str) -> None:
        """A request that is being sent has this body from now on."""
        with self._changed:
            self.bytes += len(body) - len(request.body)
            request.body, request.encoding = body, encoding

    def ask_now(self) -> None:
        """Send the oldest request at once, unless the server wants to be left alone: somebody waits for it."""
        with self._changed:
            self._not_before = 0.0
            self._backoff.begin_anew()  # a channel of gRPC may need a moment more until it has found its server again
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether nothing waits or is being sent, by then."""
        with self._changed:
            return self._changed.wait_for(self._is_empty, max(0.0, timeout_s))

    def has_room(self) -> bool:
        """Whether it is half empty, or nothing can be sent now."""
        return self._ended or self.bytes <= self._most_bytes // 2 or self._pause() > 0

    def wait_for_room(self, timeout_s: float) -> None:
        """Until it is half empty, or the server fails."""
        with self._changed:
            self._changed.wait_for(self.has_room, timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether nothing is sent any more."""
        return self._ended

    def end(self) -> None:
        """Nothing is sent any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _is_empty(self) -> bool:
        return self._ended or not (self._waiting or self._sending)

    def _pause(self) -> float:
        return max(self._not_before, self._server_not_before) - self._clock()

    def _wait_after(self, failure: Outcome) -> None:
        again = self._clock() + self._backoff.delay_s(failure.delay_s)
        if failure.delay_s is None:
            self._not_before = max(self._not_before, again)
        else:
            self._server_not_before = max(self._server_not_before, again)

    def _count(self, request: Request, outcome: Outcome) -> None:
        counts = self.counts
        if outcome.verdict is Verdict.REFUSED:
            counts.refused += request.spans
        elif outcome.verdict is not Verdict.AGAIN:
            rejected = min(outcome.rejected, request.spans)
            counts.exported += request.spans - rejected
            counts.rejected += rejected

    def _make_room(self) -> None:
        """Those that are being sent stay, because nobody knows yet what becomes of them."""
        while self.bytes > self._most_bytes and self._waiting:
            oldest = self._waiting.popleft()
            self.bytes -= oldest.size
            self.spans -= oldest.spans
            self.counts.crowded_out += oldest.spans
