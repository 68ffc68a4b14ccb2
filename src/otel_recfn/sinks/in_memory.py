"""Sinks that keep events in memory: for profiles, and for tests of programs that use otel-recfn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from otel_recfn.model.batch import Batch, Event, ProgramSpan, Sample, Track, TrainingStep
from otel_recfn.sinks.protocol import Sink
from otel_recfn.support.forks import ForkSafeLock

MAX_EVENTS = 100_000
MAX_SPANS = 1 << 14
MAX_SAMPLES = 1 << 16


class EventStore(Sink):
    """A sink with the newest rows of a capture, which stay readable after the capture has ended.

    Any thread may call its methods.

    Args:
        max_events: the maximum number of rows; beyond it the oldest are dropped and counted. A row
            takes about 200 bytes.
    """

    name = "event_store"

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._batches: deque[Batch] = deque()
        self._spans: deque[ProgramSpan] = deque(maxlen=MAX_SPANS)
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._rows = self.dropped = 0
        self._lock = ForkSafeLock()

    def write(self, batch: Batch) -> None:
        """Store the batch as it is, which costs the drain next to nothing."""
        if batch.spans or batch.samples:
            with self._lock:
                self._spans.extend(batch.spans)
                self._samples.extend(batch.samples)
            batch = replace(batch, spans=(), samples=())
        if not (len(batch) or batch.steps):
            return
        with self._lock:
            surplus = self._rows + len(batch) - self._max_events
            while surplus > 0 and self._batches:
                surplus -= self._drop_oldest(surplus)
            fitting = batch.take(slice(surplus, None), steps=batch.steps) if surplus > 0 else batch
            self._batches.append(fitting)
            self._rows += len(fitting)
            self.dropped += len(batch) - len(fitting)

    def _drop_oldest(self, most: int) -> int:
        """Drop up to ``most`` rows of the oldest batch, and return how many."""
        oldest = self._batches[0]
        if len(oldest) <= most:
            self._batches.popleft()
        else:
            self._batches[0] = oldest.take(slice(most, None), steps=oldest.steps)
        dropped = min(most, len(oldest))
        self._rows -= dropped
        self.dropped += dropped
        return dropped

    def flush(self, timeout_s: float) -> bool:
        """True, because there is nothing to wait for."""
        return True

    def close(self, timeout_s: float) -> None:
        """Do nothing: the events stay readable."""

    def counters(self) -> Mapping[str, int]:
        """The number of rows that were dropped because the store was full."""
        return {"dropped.store_full": self.dropped}

    def after_fork_in_child(self) -> Sink | None:
        """The same sink without the events, which belong to the parent process."""
        self._batches = deque()
        self._spans.clear()
        self._samples.clear()
        self._rows = self.dropped = 0
        return self

    def batches(self) -> list[Batch]:
        """The stored batches, in the order in which they came."""
        with self._lock:
            return list(self._batches)

    def spans(self) -> list[ProgramSpan]:
        """The newest of the program's spans that began or ended during the capture, in order."""
        with self._lock:
            return list(self._spans)

    def samples(self) -> list[Sample]:
        """The newest samples of what threads ran in Python, in order."""
        with self._lock:
            return list(self._samples)

    def take(self) -> list[Batch]:
        """Remove and return the stored batches, in the order in which they came."""
        with self._lock:
            taken = list(self._batches)
            self._batches.clear()
            self._rows = 0
            return taken

    def rows(self) -> Batch:
        """The rows of all batches as one batch, in the order in which they came."""
        # Imported late, as it needs the native part, and the sink doesn't.
        from otel_recfn.batches.merging import merged

        batches = self.batches()
        rows = merged(batches)
        return replace(rows, steps=_steps(batches, rows.tracks))


def _steps(batches: Sequence[Batch], tracks: Sequence[Track]) -> list[TrainingStep]:
    """The training steps of batches in the threads that rows of theirs have, whose numbers are
    those in ``tracks``.
    """
    index_of = {track.number: index for index, track in enumerate(tracks)}
    return [
        step._replace(thread=index_of[batch.tracks[step.thread].number], context=0)
        for batch in batches
        for step in batch.steps
        if batch.tracks[step.thread].number in index_of
    ]


class InMemorySink(EventStore):
    """A sink for tests: the newest events of ``instrument(sinks=[sink])`` as objects.

    The objects are made when ``events()`` is called.
    """

    name = "in_memory"

    def events(self) -> list[Event]:
        """The events by start time; events with the same time are in the order of their begins."""
        found = [event for batch in self.batches() for event in batch.events()]
        return sorted(found, key=lambda event: (event.start_ns, event.event_id))

    def clear(self) -> None:
        """Remove all events, for example between two tests."""
        self.take()
