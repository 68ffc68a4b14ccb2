"""Sinks that keep events in memory: for profiles, and for tests of programs that use otel-recfn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from otel_recfn.batches.merging import merged
from otel_recfn.model.batch import Batch, Event
from otel_recfn.sinks.protocol import Sink
from otel_recfn.support.forks import ForkSafeLock

MAX_EVENTS = 100_000


class EventStore(Sink):
    """A sink with the newest rows of a capture, which stay readable after it ended. From any thread.

    Args:
        max_events: beyond it the oldest rows are dropped and counted. A row takes about 200 bytes.
    """

    name = "event_store"

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._batches: deque[Batch] = deque()
        self._kept = self.dropped = 0
        self._lock = ForkSafeLock()

    def write(self, batch: Batch) -> None:
        """Keep a batch as it is, which costs a drain next to nothing."""
        if not len(batch):
            return
        with self._lock:
            self._batches.append(batch)
            self._kept += len(batch)
            while self._kept > self._max_events:
                oldest = self._batches.popleft()
                surplus = min(self._kept - self._max_events, len(oldest))
                if surplus < len(oldest):
                    self._batches.appendleft(oldest.take(slice(surplus, None)))
                self._kept -= surplus
                self.dropped += surplus

    def flush(self, timeout_s: float) -> bool:
        """True, as there is nothing to wait for."""
        return True

    def close(self, timeout_s: float) -> None:
        """Do nothing, since the events stay readable."""

    def counters(self) -> Mapping[str, int]:
        """The count of what there was no room for."""
        return {"dropped.store_full": self.dropped}

    def after_fork_in_child(self) -> Sink | None:
        """The same sink, emptied, because the parent's events are the parent's."""
        self._batches = deque()
        self._kept = self.dropped = 0
        return self

    def batches(self) -> list[Batch]:
        """The batches that are kept, in the order in which they came."""
        with self._lock:
            return list(self._batches)

    def take(self) -> list[Batch]:
        """Remove and return the batches that are kept, in the order in which they came."""
        with self._lock:
            taken = list(self._batches)
            self._batches.clear()
            self._kept = 0
            return taken

    def rows(self) -> Batch:
        """The rows of all batches as one batch, in the order in which they came."""
        return merged(self.batches())


class InMemorySink(EventStore):
    """A sink with the newest events, as objects, which are made when asked for."""

    name = "in_memory"

    def events(self) -> list[Event]:
        """The events by start; of two with the same start, the one that began first comes first."""
        found = [event for batch in self.batches() for event in batch.events()]
        return sorted(found, key=lambda event: (event.start_ns, event.event_id))

    def clear(self) -> None:
        """Forget all events, as between two tests."""
        self.take()
