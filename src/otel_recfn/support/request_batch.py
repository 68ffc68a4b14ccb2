"""The requests that one batch serves: written where the batch runs, read by the sink of spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.trace import Link, SpanContext

BATCH = "recfn.batch."
"""The prefix of the attributes of batches."""
BATCH_SIZE = BATCH + "size"


class Request(NamedTuple):
    """A sampled request, which gets a span for its batch."""

    span: SpanContext
    """The request's span."""
    position: int
    """Its place in the batch, from 0."""
    start_ns: int | None
    """When its span began, in Unix nanoseconds; None if that isn't known."""


class RequestBatch:
    """A batch of requests. The thread that runs it fills ``end``, once.

    Args:
        name: of its span and of the requests'.
        size: the number of contexts that were given, valid or not.
        links: a link to each valid request.
        requests: those that are sampled.
    """

    __slots__ = (
        "_end_ns",
        "error",
        "forward",
        "is_partial",
        "links",
        "name",
        "requests",
        "size",
        "start_ns",
    )

    def __init__(
        self, name: str, size: int, links: Sequence[Link], requests: Sequence[Request]
    ) -> None:
        self.name, self.size, self.links, self.requests = name, size, links, requests
        self.start_ns = self._end_ns = 0
        self.forward: SpanContext | None = None
        """The batch's own span; None if it has none."""
        self.error = ""
        """The exception that left it, as ``_native.end`` takes it; empty if none did."""
        self.is_partial = False
        """Whether it goes on, and ``end_ns`` is when the recording ended."""

    def begin(self, forward: SpanContext | None, start_ns: int) -> None:
        """Note its own span and its begin in Unix nanoseconds."""
        self.forward, self.start_ns = forward, start_ns

    def end(self, end_ns: int, error: str = "", *, is_partial: bool = False) -> None:
        """Note its end in Unix nanoseconds, unless it has one."""
        if not self._end_ns:
            self.error, self.is_partial = error, is_partial
            self._end_ns = end_ns  # last, since the sink reads the others once there is one

    @property
    def end_ns(self) -> int | None:
        """Its end; None while it is open."""
        return self._end_ns or None

    @property
    def key(self) -> tuple[int, int] | None:
        """The trace id and span id of its own span, below which its ranges are."""
        return None if self.forward is None else (self.forward.trace_id, self.forward.span_id)
