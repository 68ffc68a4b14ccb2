"""Keeps events in memory, for tests of programs that use otel-recfn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping

from otel_recfn.model.batch import Batch, Event
from otel_recfn.sinks.protocol import Sink

MAX_EVENTS = 100_000


class InMemorySink:
    """The newest events, as objects.

    Batches are kept as they come, which costs the drain next to nothing; events are made when asked for.

    Args:
        max_events: beyond it the oldest rows are dropped and counted.
    """

    name = "in_memory"

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._lock = threading.Lock()
        self._batches: deque[tuple[Batch, int]] = deque()  # each with the first of its rows that is kept
        self._kept = self._rows = self._dropped = self._cleared = 0

    def write(self, batch: Batch) -> None:
        """Keep a batch."""
        if not len(batch):
            return
        with self._lock:
            self._batches.append((batch, 0))
            self._rows += len(batch)
            self._kept += len(batch)
            self._drop_oldest()

    def events(self) -> list[Event]:
        """What was recorded, by start; of two that start at once, the one that began first."""
        with self._lock:
            batches = list(self._batches)
        return sorted(_kept_events(batches), key=lambda event: (event.start_ns, event.event_id))

    def clear(self) -> None:
        """Forget all events, as between two tests."""
        with self._lock:
            self._batches.clear()
            self._cleared += self._kept
            self._kept = 0

    def flush(self, timeout_s: float) -> bool:
        """Nothing to wait for."""
        return True

    def close(self, timeout_s: float) -> None:
        """The events stay readable."""

    def counters(self) -> Mapping[str, int]:
        """``rows`` = ``kept`` + ``dropped`` + ``cleared``."""
        with self._lock:
            return {"rows": self._rows, "kept": self._kept, "dropped": self._dropped, "cleared": self._cleared}

    def after_fork_in_child(self) -> Sink | None:
        """An empty one: the parent's events are the parent's."""
        return InMemorySink(self._max_events)

    def _drop_oldest(self) -> None:
        while self._kept > self._max_events:
            batch, first = self._batches.popleft()
            surplus = min(self._kept - self._max_events, len(batch) - first)
            self._kept -= surplus
            self._dropped += surplus
            if first + surplus < len(batch):
                self._batches.appendleft((batch, first + surplus))


def _kept_events(batches: list[tuple[Batch, int]]) -> Iterator[Event]:
    for batch, first in batches:
        for row, event in enumerate(batch.events()):
            if row >= first:
                yield event
