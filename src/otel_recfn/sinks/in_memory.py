"""Sinks that keep events in memory: for profiles, and for tests of programs that use otel-recfn."""

from __future__ import annotations

from collections.abc import Mapping

from otel_recfn.batches.merging import EventStore
from otel_recfn.model.batch import Batch, Event
from otel_recfn.sinks.protocol import Sink

MAX_EVENTS = 100_000


class EventStoreSink(Sink):
    """A sink that hands every batch to a store, which stays readable after the capture ended."""

    name = "event_store"

    def __init__(self, store: EventStore) -> None:
        self.store = store

    def write(self, batch: Batch) -> None:
        """Keep a batch."""
        if len(batch):
            self.store.append(batch)

    def flush(self, timeout_s: float) -> bool:
        """True, as there is nothing to wait for."""
        return True

    def close(self, timeout_s: float) -> None:
        """Do nothing, since the events stay readable."""

    def counters(self) -> Mapping[str, int]:
        """The count of what the store had no room for."""
        return {"dropped.store_full": self.store.dropped}

    def after_fork_in_child(self) -> Sink | None:
        """The same sink, emptied, because the parent's events are the parent's."""
        self.store.start_empty()
        return self


class InMemorySink(EventStoreSink):
    """A sink with the newest events, as objects, which are made when asked for.

    Args:
        max_events: beyond it the oldest rows are dropped and counted.
    """

    name = "in_memory"

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        super().__init__(EventStore(max_events))
        self._max_events = max_events

    def events(self) -> list[Event]:
        """The events by start; of two with the same start, the one that began first comes first."""
        return self.store.events()

    def clear(self) -> None:
        """Forget all events, as between two tests."""
        self.store.take()

    def after_fork_in_child(self) -> Sink | None:
        """An empty sink, because the parent's events are the parent's."""
        return InMemorySink(self._max_events)
