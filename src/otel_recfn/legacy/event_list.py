"""The events of one thread."""

from __future__ import annotations

from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.thread_events import ThreadEvents


class RangeEventList:
    """A thread's events, until they are consolidated. How many there may be is bounded by the store that they come from.

    Source: ``RangeEventList`` in torch/csrc/autograd/profiler_legacy.h.
    """

    def __init__(self) -> None:
        self._events = ThreadEvents()

    def record(self, event: LegacyEvent) -> None:
        """The thread's next event."""
        self._events.append(event)

    def record_all(self, events: ThreadEvents) -> None:
        """The thread's next events."""
        self._events = ThreadEvents([*self._events, *events]) if self._events else events

    def size(self) -> int:
        """How many there are."""
        return len(self._events)

    def consolidate(self) -> ThreadEvents:
        """Take all events away, in their order."""
        events, self._events = self._events, ThreadEvents()
        return events
