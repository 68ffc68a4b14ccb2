"""A queue of batches that wait until there is memory to write them. Its places are allocated before they are needed, so that
adding a batch to it needs no memory.

A batch that is refused is lost, and with it the parents of rows that were written earlier. So whoever adds one asks for room
before, and waits where there is none; half of the places are kept for who can't wait, because a recording ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY

ALWAYS_TAKEN = 64
"""How many batches may wait, however large they are."""
MAX_ROWS = 200_000
"""Where more batches wait than that: how many rows they may have together."""
ROWS_OF_A_BATCH = 64
"""The memory that a batch takes beside its rows, in rows."""


class WaitingBatches:
    """First in, first out. A method that finds no memory changes nothing."""

    def __init__(self) -> None:
        self._places: list[Batch | None] = [None] * (2 * ALWAYS_TAKEN)
        """A ring: the queue begins at ``_first`` and goes on at the front where the list ends."""
        self._first = self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._count):
            batch = self._places[(self._first + number) % len(self._places)]
            if batch is not None:
                yield batch

    def add(self, batch: Batch) -> bool:
        """Append a batch; False where too many wait already."""
        if self._is_full():
            return False
        place, count = (self._first + self._count) % len(self._places), self._count + 1
        self._places[place], self._count = batch, count
        return True

    def has_room(self) -> bool:
        """Whether one more may be added, and as many again by who doesn't ask."""
        if 2 * self._count < ALWAYS_TAKEN:
            return True
        try:
            self._make_places(4 * self._count)
            return 4 * self._count < len(self._places) and 2 * self._rows() < MAX_ROWS
        except OUT_OF_MEMORY:  # none for its place
            return False

    def first(self) -> Batch | None:
        """The batch that waits longest; None where none waits."""
        return self._places[self._first]

    def last(self) -> Batch | None:
        """The batch that was added last; None where none waits."""
        return self._places[(self._first + self._count - 1) % len(self._places)] if self._count else None

    def remove_first(self) -> None:
        """It waits no more."""
        first, count = (self._first + 1) % len(self._places), self._count - 1
        self._places[self._first] = None
        self._first, self._count = first, count

    def clear(self) -> None:
        """None waits any more."""
        places: list[Batch | None] = [None] * (2 * ALWAYS_TAKEN)
        self._places, self._first, self._count = places, 0, 0

    def _is_full(self) -> bool:
        """Whether no batch may be added. Allocates more places when half of them are taken, if there is memory."""
        if self._count < ALWAYS_TAKEN:
            return False
        try:
            if self._rows() >= MAX_ROWS:
                return True
            self._make_places(2 * self._count)
        except OUT_OF_MEMORY:  # there are free places yet; more are asked for with the next batch
            pass
        return self._count == len(self._places)

    def _rows(self) -> int:
        return sum([ROWS_OF_A_BATCH + len(batch) + len(batch.opened) for batch in self._places if batch is not None])

    def _make_places(self, needed: int) -> None:
        """Allocate twice as many places as are needed, where there are no more than these."""
        if len(self._places) <= needed:
            self._places, self._first = [*self, *([None] * (2 * needed - self._count))], 0
