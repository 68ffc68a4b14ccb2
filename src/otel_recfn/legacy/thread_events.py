"""The events of a run, in a list for each thread.

A list makes its events when it is first read: most of the millions never are.
"""

from __future__ import annotations

import gc
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from functools import cached_property, partial
from typing import Any

from otel_recfn.batches.key_average import KeyAverages
from otel_recfn.legacy.event import LegacyEvent


class ThreadEvents(UserList[LegacyEvent]):
    """A list of events, which has the same object at an index whenever it is read.

    ``events`` are there already, or a function makes them when one is read.
    """

    def __init__(
        self, events: Iterable[LegacyEvent] | Callable[[], list[LegacyEvent]] = ()
    ) -> None:
        self._make = events if callable(events) else partial(list, events)

    @cached_property
    def data(self) -> list[LegacyEvent]:  # type: ignore[override]
        """The list that UserList works on."""
        collects = gc.isenabled()
        gc.disable()  # Python's collector would go through millions of new objects again and again
        try:
            found = self._make()
        finally:
            if collects:
                gc.enable()
        self._make = list[LegacyEvent]  # releases what the events were made of
        return found

    def __iter__(self) -> Iterator[LegacyEvent]:
        return iter(self.data)

    def __copy__(self) -> ThreadEvents:
        return ThreadEvents(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadEvents, (self.data,)


class ThreadEventLists(list["MutableSequence[LegacyEvent]"]):
    """The events of each thread, in order; each event is made when it is first read.

    Attributes:
        lost: the counts of what ran and is not in them, by counter; empty if all is.
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
        """Count, total and self time per name, of the ranges of this process, as ``profile`` has
        them.
        """
        averages = self._averages() if self._averages is not None else KeyAverages(())
        return KeyAverages(averages, self.lost)
