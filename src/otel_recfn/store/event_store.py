"""Sealed batches in memory, bounded. Batches are kept as they come, which costs a drain next to nothing."""

from __future__ import annotations

from collections import deque

from otel_recfn.batches.merging import merged
from otel_recfn.model.batch import Batch, Event
from otel_recfn.support.forks import ForkSafeLock


class EventStore:
    """The newest rows of a capture. Methods may be called from any thread.

    Args:
        max_events: beyond it the oldest rows are dropped and counted. A row takes about 200 bytes.
    """

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._batches: deque[Batch] = deque()
        self._kept = self.dropped = 0
        self._lock = ForkSafeLock()

    def append(self, batch: Batch) -> None:
        """Keep a batch."""
        if not len(batch):
            return
        with self._lock:
            self._batches.append(batch)
            self._kept += len(batch)
            self._drop_oldest()

    def batches(self) -> list[Batch]:
        """What is kept, in the order in which it came."""
        with self._lock:
            return list(self._batches)

    def take(self) -> list[Batch]:
        """Remove and return what is kept, in the order in which it came."""
        with self._lock:
            taken = list(self._batches)
            self._batches.clear()
            self._kept = 0
            return taken

    def rows(self) -> Batch:
        """What is kept as one batch, in the order in which it came."""
        return merged(self.batches())

    def events(self) -> list[Event]:
        """What is kept, by start; of two that start at once, the one that began first."""
        found = [event for batch in self.batches() for event in batch.events()]
        return sorted(found, key=lambda event: (event.start_ns, event.event_id))

    def clear(self) -> None:
        """Forget everything."""
        self.take()

    def start_empty(self) -> None:
        """Forget everything, counts too, in a forked child."""
        self._batches = deque()
        self._kept = self.dropped = 0

    def _drop_oldest(self) -> None:
        while self._kept > self._max_events:
            oldest = self._batches[0]
            surplus = min(self._kept - self._max_events, len(oldest))
            if surplus < len(oldest):
                self._batches[0] = oldest.take(slice(surplus, None))
            else:
                self._batches.popleft()
            self._kept -= surplus
            self.dropped += surplus
