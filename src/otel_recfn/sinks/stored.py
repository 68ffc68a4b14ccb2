"""The sink in front of an event store."""

from __future__ import annotations

from collections.abc import Mapping

from otel_recfn.model.batch import Batch
from otel_recfn.sinks.protocol import Sink
from otel_recfn.store.event_store import EventStore


class EventStoreSink(Sink):
    """Hands every batch to a store, which stays readable after the capture ended."""

    name = "event_store"

    def __init__(self, store: EventStore) -> None:
        self.store = store

    def write(self, batch: Batch) -> None:
        """Keep a batch."""
        if len(batch):
            self.store.append(batch)

    def flush(self, timeout_s: float) -> bool:
        """Nothing to wait for."""
        return True

    def close(self, timeout_s: float) -> None:
        """The events stay readable."""

    def counters(self) -> Mapping[str, int]:
        """What the store had no room for."""
        return {"dropped.store_full": self.store.dropped}

    def after_fork_in_child(self) -> Sink | None:
        """The same, emptied: the parent's events are the parent's."""
        self.store.start_empty()
        return self
