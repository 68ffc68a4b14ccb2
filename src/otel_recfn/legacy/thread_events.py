"""The events of each thread as lists. An event is made when it is first looked at: most of a run of millions never are."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from typing import Any, SupportsIndex, overload

from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.store.averages import KeyAverages
from otel_recfn.support.fork_safe_lock import ForkSafeLock

BLOCK = 4096
"""Events that are made at once: the first look at one costs its neighbours."""

Make = Callable[[int, int], "list[LegacyEvent]"]
"""Makes the events from the first place to before the second."""


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


class ThreadEvents(MutableSequence[LegacyEvent]):
    """A list of events. Each place has one object, whoever looks and however often.

    Args:
        events: those that are there already.
    """

    def __init__(self, events: Iterable[LegacyEvent] = ()) -> None:
        self._events: list[Any] = list(events)
        self._make: Make | None = None
        self._left = 0
        self._lock = ForkSafeLock()

    @classmethod
    def made_by(cls, count: int, make: Make) -> ThreadEvents:
        """As many events, which ``make`` makes when they are looked at."""
        found = cls()
        found._events = [None] * count
        found._make, found._left = make, count
        return found

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[LegacyEvent]:
        return iter(self._events) if self._make is None else self._in_blocks()

    @overload
    def __getitem__(self, place: SupportsIndex) -> LegacyEvent: ...

    @overload
    def __getitem__(self, place: slice) -> list[LegacyEvent]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = self._events[place]
        if self._make is None or (found is not None and not isinstance(found, list)):
            return found
        at = range(len(self._events))[place]
        for first in [at] if isinstance(at, int) else sorted({each - each % BLOCK for each in at}):
            self._make_block(first)
        return self._events[place]

    # --- as a list

    def __setitem__(self, place: Any, value: Any) -> None:
        self._all()[place] = value

    def __delitem__(self, place: SupportsIndex | slice) -> None:
        del self._all()[place]

    def insert(self, index: SupportsIndex, value: LegacyEvent) -> None:
        """As a list's."""
        self._all().insert(index, value)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """As a list's."""
        self._all().sort(key=key, reverse=reverse)

    def copy(self) -> list[LegacyEvent]:
        """As a list's."""
        return list(self)

    def __add__(self, other: Iterable[LegacyEvent]) -> list[LegacyEvent]:
        return [*self, *other]

    def __radd__(self, other: Iterable[LegacyEvent]) -> list[LegacyEvent]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | ThreadEvents):
            return NotImplemented
        return len(self) == len(other) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadEvents, (self._all(),)

    # --- making

    def _in_blocks(self) -> Iterator[LegacyEvent]:
        first = 0
        while first < len(self._events):
            self._make_block(first)
            yield from self._events[first : first + BLOCK]
            first += BLOCK

    def _all(self) -> list[LegacyEvent]:
        for first in range(0, len(self._events), BLOCK):
            self._make_block(first)
        return self._events

    def _make_block(self, place: int) -> None:
        first = place - place % BLOCK
        with self._lock:
            if self._make is None or self._events[first] is not None:
                return
            with no_collections():
                made = self._make(first, min(first + BLOCK, len(self._events)))
            self._events[first : first + len(made)] = made
            self._left -= len(made)
            if not self._left:
                self._make = None  # what they are made of may go


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
