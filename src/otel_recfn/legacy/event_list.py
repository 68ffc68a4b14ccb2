"""The events of one thread."""

from __future__ import annotations

from operator import attrgetter

from otel_recfn.legacy.event import LegacyEvent


class RangeEventList:
    """A thread's events, until they are consolidated. How many there may be is bounded by the store that they come from.

    Source: ``RangeEventList`` in torch/csrc/autograd/profiler_legacy.h.
    """

    def __init__(self) -> None:
        self._events: list[LegacyEvent] = []
        self._from_elsewhere: list[LegacyEvent] = []

    def record(self, event: LegacyEvent) -> None:
        """The thread's next event."""
        self._events.append(event)

    def record_all(self, events: list[LegacyEvent]) -> None:
        """The thread's next events."""
        self._events = [*self._events, *events] if self._events else events

    def record_from_elsewhere(self, pop: LegacyEvent) -> None:
        """Another thread ended a range of this one: the pop stands where its time is, after what happened here at that time."""
        self._from_elsewhere.append(pop)

    def size(self) -> int:
        """How many there are."""
        return len(self._events) + len(self._from_elsewhere)

    def consolidate(self) -> list[LegacyEvent]:
        """Take all events away, in their order."""
        events, self._events = self._events + self._from_elsewhere, []
        if self._from_elsewhere:
            self._from_elsewhere = []
            events.sort(key=attrgetter("cpu_ns"))  # stable: the thread's own stay in their order
        return events
