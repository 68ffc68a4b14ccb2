"""The batches of requests that are open, or whose requests' spans aren't sent.

    start_step ──► add ──────────┐
    Folding: a unit is decided ──► UnitSums, over all parts of the unit
    RequestBatch.end ────────────┴─► take_complete ──► sender: a span for each sampled request

A batch is complete when it has ended, all ranges that had ended by then have come, and the unit
below its span is decided, if there is one. A batch that is never left is forgotten among many.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from opentelemetry.trace import SpanContext

from otel_recfn.sinks.spans.sender import DecidedUnits
from otel_recfn.sinks.spans.sum_attributes import UnitSums
from otel_recfn.support.recent_entries import remember
from otel_recfn.support.request_batch import RequestBatch

MAX_BATCHES = 1 << 12
"""The most batches that are open at a time."""
REQUEST_BYTES = 1000
"""The bytes of a request's span while it waits."""
Key: TypeAlias = tuple[int, int]


@dataclass(eq=False, slots=True)
class UnsentBatch:
    """A batch with what is known of its unit."""

    batch: RequestBatch
    sums: UnitSums
    ended_by_ns: float = math.inf
    """It had certainly ended by then: the clock may have been set back since."""

    def has_ended_before(self, time_ns: float) -> bool:
        """Whether it had ended before that time in Unix nanoseconds."""
        if self.batch.end_ns is not None:
            self.ended_by_ns = min(self.ended_by_ns, self.batch.end_ns, time.time_ns())
        return self.ended_by_ns < time_ns


class RequestBatches:
    """The batches of one sink. Only ``add`` may be called from any thread."""

    def __init__(self) -> None:
        self._unsent: dict[RequestBatch, UnsentBatch] = {}
        self._sums: dict[Key, UnitSums] = {}
        """The sums of the units below them, by the ids of their spans."""

    def add(self, batch: RequestBatch) -> None:
        """Remember a batch that begins, if it has requests to send spans for."""
        if not batch.requests:
            return
        sums = UnitSums()
        if batch.key is not None:
            remember(self._sums, batch.key, sums, MAX_BATCHES)
        remember(self._unsent, batch, UnsentBatch(batch, sums), MAX_BATCHES)

    def sums_of(self, key: Key) -> UnitSums | None:
        """The sums of the unit below the span with these ids; None if it is no batch's."""
        return self._sums.get(key)

    def take_complete(
        self, drained_ns: float, has_unit: Callable[[SpanContext], bool]
    ) -> list[DecidedUnits]:
        """Remove the batches that are complete, and return what to send of each.

        ``drained_ns``: all ranges that had ended by then have come. ``has_unit`` says whether the
        unit below a span is open.
        """
        complete = list[DecidedUnits]()
        for unsent in list(self._unsent.values()):
            forward = unsent.batch.forward
            if unsent.has_ended_before(drained_ns) and (forward is None or not has_unit(forward)):
                self._forget(unsent.batch)
                complete.append(_to_send(unsent.batch, unsent.sums))
        return complete

    def start_empty(self) -> None:
        """Forget the parent's batches in a forked child."""
        self._unsent.clear()
        self._sums.clear()

    def _forget(self, batch: RequestBatch) -> None:
        self._unsent.pop(batch, None)
        if batch.key is not None:
            self._sums.pop(batch.key, None)


def _to_send(batch: RequestBatch, sums: UnitSums) -> DecidedUnits:
    return DecidedUnits(
        requests=batch,
        request_attributes=sums.attributes(),
        ranges=len(batch.requests),
        is_ordinary=sums.is_ordinary and not batch.error,
        nbytes=len(batch.requests) * REQUEST_BYTES,
    )
