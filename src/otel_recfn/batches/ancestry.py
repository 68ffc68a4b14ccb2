"""Which range a capture sees around each row, where it doesn't see them all.

A parent may be any range that began earlier: of another thread, and also one that has ended. It is looked for

1. among the rows of the batch, where ranges that are open stand too,
2. among the ranges that ended lately (``KnownRanges``), or that something open lies in.

A parent in neither began before the capture, or ended so long ago that it was forgotten: the row becomes top-level.
There is one exception: a capture that was the only one until now has seen every range, so its rows keep the parents that were
recorded, until a range that it hasn't seen is forgotten.

The ranges that ended lately are remembered as columns by event id, of the newest ids: they are looked up for many at once,
in bounded memory.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventKind

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


MAX_KNOWN = 1 << 17


class Around(NamedTuple):
    """For each row."""

    parent: Ids
    """The nearest ancestor that is seen; 0 where there is none."""
    root: Ids
    """The outermost ancestor that is seen; the row itself where there is none."""


class KnownRanges:
    """The ranges that ended last, as a capture sees them.

    Args:
        most: so many.
    """

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._ranges = Remembered(most, columns=3)
        self.forgot_hidden = False
        """Among those that were forgotten was one that the capture doesn't see."""

    def add(self, ids: Ids, nearest: Ids, root: Ids) -> None:
        """Ranges that ended.

        Args:
            ids: of the ranges.
            nearest: the range itself where it is seen, else its nearest ancestor that is, or 0.
            root: of ``nearest``.
        """
        for forgotten in self._ranges.add(by_id(ids, nearest, root)):
            self.forgot_hidden |= bool((forgotten[1] != forgotten[0]).any())

    def find(self, wanted: Ids, pinned: Columns) -> tuple[Mask, Ids, Ids]:
        """Which are known, and ``nearest`` and ``root`` of those; ``pinned`` are known too."""
        found, (nearest, root) = self._ranges.find(wanted, pinned)
        return found, nearest, root


class Ancestry:
    """One capture's, batch by batch.

    Args:
        most_known: how many ranges that ended are remembered.
    """

    def __init__(self, most_known: int = MAX_KNOWN) -> None:
        self._known = KnownRanges(most_known)
        self._pinned: Columns = ()
        self._was_alone = self._has_seen_all = False

    def was_alone(self) -> None:
        """The capture has seen every range up to now."""
        self._was_alone = self._has_seen_all = True

    def around(self, batch: Batch, seen: Mask) -> Around:
        """What the capture sees around the rows of a batch that was drained with the open ranges.

        Args:
            batch: the batch.
            seen: the rows that the capture sees.
        """
        is_range = batch.kind == EventKind.RANGE
        self._has_seen_all = self._has_seen_all and bool(seen[is_range].all())
        if self._has_seen_all:
            return Around(batch.parent, batch.root)
        around = self._look(batch, seen)
        ended = np.flatnonzero(is_range[: batch.closed])
        if len(ended):
            nearest = np.where(seen, batch.event_id, around.parent)
            self._known.add(batch.event_id[ended], nearest[ended], around.root[ended])
        return around

    def _look(self, batch: Batch, seen: Mask) -> Around:
        hidden = np.flatnonzero(~seen)
        order = hidden[np.argsort(batch.event_id[hidden])]
        parent = followed(batch.parent.copy(), batch.event_id[order], batch.parent[order])
        outside = (parent != 0) & ~is_in(parent, batch.event_id)
        root = batch.event_id.copy()
        self._look_outside(batch, np.flatnonzero(outside), parent, root)
        return Around(parent, _roots(batch.event_id, parent, root, nested=(parent != 0) & ~outside))

    def _look_outside(self, batch: Batch, rows: NDArray[np.int64], parent: Ids, root: Ids) -> None:
        """Replace the parents of these rows, and give them the roots of those."""
        wanted = parent[rows]
        found, nearest, above = self._known.find(wanted, self._pinned)
        if self._was_alone and not self._known.forgot_hidden:
            nearest, above = np.where(found, nearest, wanted), np.where(found, above, batch.root[rows])
        is_open = rows >= batch.closed
        self._pinned = by_id(wanted[is_open], nearest[is_open], above[is_open])
        parent[rows] = nearest
        root[rows] = np.where(nearest != 0, above, batch.event_id[rows])


def _roots(event_id: Ids, parent: Ids, root: Ids, nested: Mask) -> Ids:
    """Each row's root: that of its outermost ancestor among the rows."""
    inner = np.flatnonzero(nested)
    order = inner[np.argsort(event_id[inner])]
    outermost = followed(event_id.copy(), event_id[order], parent[order])
    by_id = np.argsort(event_id)
    found: Ids = root[by_id[np.searchsorted(event_id[by_id], outermost)]]
    return found


def followed(ids: Ids, known: Ids, leads_to: Ids) -> Ids:
    """Every id replaced by what it leads to, as long as it is among the known ones (sorted)."""
    rows = np.arange(len(ids)) if len(known) else np.zeros(0, np.int64)
    while len(rows):
        place = np.minimum(np.searchsorted(known, ids[rows]), len(known) - 1)
        found = known[place] == ids[rows]
        rows, place = rows[found], place[found]
        ids[rows] = leads_to[place]
    return ids
