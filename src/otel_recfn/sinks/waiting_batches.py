"""Batches that wait for memory, in places that were allocated before: to lay one down needs no memory.

A batch that is refused may hold the parents of rows that were handed on before. So one is refused late: where memory ends again
and again, thousands of small ones may wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY

ALWAYS_TAKEN = 64
"""So many may wait, however large they are."""
MAX_ROWS = 200_000
"""Where more wait, so many rows of them all."""
ROWS_OF_A_BATCH = 64
"""A batch without any row takes the memory of so many."""


class WaitingBatches:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._places: list[Batch | None] = [None] * (2 * ALWAYS_TAKEN)
        """A ring."""
        self._first = self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._count):
            batch = self._places[(self._first + number) % len(self._places)]
            if batch is not None:
                yield batch

    def add(self, batch: Batch) -> bool:
        """Lay another one down; False where too many wait already."""
        if self._is_full():
            return False
        self._places[(self._first + self._count) % len(self._places)] = batch
        self._count += 1
        return True

    def first(self) -> Batch | None:
        """The one that waits longest; None where none waits."""
        return self._places[self._first]

    def remove_first(self) -> None:
        """It waits no more."""
        self._places[self._first] = None
        self._first = (self._first + 1) % len(self._places)
        self._count -= 1

    def clear(self) -> None:
        """None waits any more."""
        while self._count:
            self.remove_first()

    def _is_full(self) -> bool:
        """Looks also for more places, long before there is none left."""
        if self._count < ALWAYS_TAKEN:
            return False
        try:
            if sum(ROWS_OF_A_BATCH + len(batch) + len(batch.opened) for batch in self) >= MAX_ROWS:
                return True
            if 2 * self._count >= len(self._places):
                self._places, self._first = [*self, *([None] * (3 * self._count))], 0
        except OUT_OF_MEMORY:  # with the next one
            pass
        return self._count == len(self._places)
