"""Keeps events in memory, for tests of programs that use otel-recfn."""

from __future__ import annotations

from otel_recfn.model.batch import Event
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.stored import EventStoreSink
from otel_recfn.store.event_store import EventStore

MAX_EVENTS = 100_000


class InMemorySink(EventStoreSink):
    """The newest events, as objects, which are made when asked for.

    Args:
        max_events: beyond it the oldest rows are dropped and counted.
    """

    name = "in_memory"

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        super().__init__(EventStore(max_events))
        self._max_events = max_events

    def events(self) -> list[Event]:
        """What was recorded, by start; of two that start at once, the one that began first."""
        return self.store.events()

    def clear(self) -> None:
        """Forget all events, as between two tests."""
        self.store.clear()

    def after_fork_in_child(self) -> Sink | None:
        """An empty one: the parent's events are the parent's."""
        return InMemorySink(self._max_events)
