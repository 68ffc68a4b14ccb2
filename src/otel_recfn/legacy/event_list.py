"""The events of one thread."""

from __future__ import annotations

from otel_recfn.legacy.event import LegacyEvent


class RangeEventList:
    """A thread's events in their order. How many there may be is bounded by the store that they come from.

    Source: ``RangeEventList`` in torch/csrc/autograd/profiler_legacy.h.
    """

    def __init__(self) -> None:
        self._events: list[LegacyEvent] = []

    def __len__(self) -> int:
        return len(self._events)

    def record(self, event: LegacyEvent) -> None:
        """Append an event."""
        self._events.append(event)

    def consolidate(self) -> list[LegacyEvent]:
        """Take all events away."""
        events, self._events = self._events, []
        return events
