"""Columns of numbers by event id, of the newest ids: looked up for many ids at once, in bounded memory."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Ids = NDArray[np.uint64]
Columns = tuple[Ids, ...]
"""Of equal length; the first one has the event ids, in ascending order."""

SMALL_CHUNK = 4096


class Remembered:
    """Kept in chunks as they came; small ones are put together, so that there are few to search.

    Args:
        most: so many ids.
        columns: how many columns, with the ids.
    """

    def __init__(self, most: int, columns: int) -> None:
        self._most = most
        self._nothing: Columns = (np.zeros(0, np.uint64),) * columns
        self.chunks: deque[Columns] = deque()

    def add(self, added: Columns) -> list[Columns]:
        """Remember these too. What was forgotten for it, the oldest, is returned."""
        chunks = self.chunks
        chunks.append(added)
        while len(chunks) > 1 and len(chunks[-2][0]) <= min(SMALL_CHUNK, 2 * len(chunks[-1][0])):
            pairs = zip(chunks[-2], chunks[-1], strict=True)
            chunks[-2] = by_id(*[np.concatenate(pair) for pair in pairs])
            chunks.pop()
        forgotten = []
        while len(chunks) > 1 and sum(len(chunk[0]) for chunk in chunks) > self._most:
            forgotten.append(chunks.popleft())
        return forgotten

    def find(self, wanted: Ids, first: Columns = ()) -> tuple[Mask, Columns]:
        """Which ids are known, and their columns but for the id; zeros where one isn't.

        Args:
            wanted: the ids.
            first: is searched before what is remembered.
        """
        found = np.zeros(len(wanted), np.bool_)
        values = tuple(np.zeros_like(wanted) for _ in self._nothing[1:])
        for ids, *columns in (first or self._nothing, *reversed(self.chunks)):
            if not len(ids) or found.all():
                continue
            place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
            here = ~found & (ids[place] == wanted)
            for value, column in zip(values, columns, strict=True):
                value[here] = column[place[here]]
            found |= here
        return found, values


def by_id(*columns: Ids) -> Columns:
    """The columns sorted by the first one."""
    order = np.argsort(columns[0])
    return tuple(column[order] for column in columns)
