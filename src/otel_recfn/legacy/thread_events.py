"""The events of each thread as lists, which are made when they are first looked at: most of a run of millions never are."""

from __future__ import annotations

import gc
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from typing import Any

from otel_recfn.batches.averages import KeyAverages
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.support.forks import ForkSafeLock


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep Python's collector of cycles from looking at millions of new objects again and again while they are made.

    A few seconds at most, in which nothing becomes a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ThreadEvents(UserList[LegacyEvent]):
    """A list of events. Each place has one object, whoever looks and however often.

    Args:
        events: those that are there already.
    """

    def __init__(self, events: Iterable[LegacyEvent] = ()) -> None:
        self._events = list(events)
        self._count, self._make = 0, _nothing
        self._lock = ForkSafeLock()

    @classmethod
    def made_by(cls, count: int, make: Callable[[], list[LegacyEvent]]) -> ThreadEvents:
        """As many events, which ``make`` makes when one is looked at."""
        found = cls()
        found._count, found._make = count, make
        return found

    @property
    def data(self) -> list[LegacyEvent]:  # type: ignore[override]
        """The list that UserList works on."""
        with self._lock:
            if self._count:
                with no_collections():
                    self._events = self._make()
                self._count, self._make = 0, _nothing  # what they are made of may go
            return self._events

    def __len__(self) -> int:
        return self._count or len(self._events)

    def __copy__(self) -> ThreadEvents:
        return ThreadEvents(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadEvents, (self.data,)


def _nothing() -> list[LegacyEvent]:
    return []


class ThreadEventLists(list["MutableSequence[LegacyEvent]"]):
    """The events of each thread, in their order; each event is made when it is first looked at.

    Attributes:
        lost: what ran and is not in them, by counter; empty where all is.
    """

    def __init__(
        self,
        lists: Iterable[MutableSequence[LegacyEvent]] = (),
        averages: Callable[[], KeyAverages] | None = None,
        lost: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(lists)
        self._averages = averages
        self.lost = dict(lost or {})

    def key_averages(self) -> KeyAverages:
        """Count, total and self time per name, of the ranges of this process; as those of ``profile``."""
        averages = self._averages() if self._averages is not None else KeyAverages(())
        return averages.with_losses(self.lost)


class RangeEventList:
    """A thread's events, until they are consolidated; for programs that use it under PyTorch's name.

    Source: ``RangeEventList`` in torch/csrc/autograd/profiler_legacy.h.
    """

    def __init__(self) -> None:
        self._events: list[LegacyEvent] = []

    def record(self, event: LegacyEvent) -> None:
        """The thread's next event."""
        self._events.append(event)

    def size(self) -> int:
        """How many there are."""
        return len(self._events)

    def consolidate(self) -> list[LegacyEvent]:
        """Take all events away, in their order."""
        events, self._events = self._events, []
        return events
