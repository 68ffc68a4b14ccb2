"""How far ids go in each thread: what is left of a set of ids when there is no room for all of them.

The ids of a thread's ranges grow in the order in which they begin. So "at most that" is true of all that were in the set, and
else only of what began before them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.remembered import Ids, Mask
from otel_recfn.model.events import ORDINAL_BITS

MAX_THREADS = 1 << 16
"""Those that were added to last."""


class ThreadMarks:
    """The largest id of each thread."""

    def __init__(self) -> None:
        self._marks: Ids = np.zeros(0, np.uint64)
        """The threads' largest ids, those that were added last first."""
        self._sorted = self._marks

    def add(self, ids: Ids) -> None:
        """These were in the set, too."""
        marks = np.concatenate([_largest(ids), self._marks])
        largest = _largest(marks)
        order = np.argsort(_first_places(marks))
        self._marks = largest[order[:MAX_THREADS]]
        self._sorted = np.sort(self._marks)

    def __len__(self) -> int:
        return len(self._marks)

    def reach(self, ids: Ids) -> Mask:
        """Which of these may have been in the set."""
        if not len(self._sorted):
            return np.zeros(len(ids), np.bool_)
        place = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        mark = self._sorted[place]
        reached: Mask = (ids <= mark) & (ids >> np.uint64(ORDINAL_BITS) == mark >> np.uint64(ORDINAL_BITS))
        return reached


def _largest(ids: Ids) -> Ids:
    """The largest id of each thread, by thread."""
    ordered = np.sort(ids)
    threads = ordered >> np.uint64(ORDINAL_BITS)
    largest: Ids = ordered[np.append(threads[1:] != threads[:-1], True)[: len(ordered)]]
    return largest


def _first_places(ids: Ids) -> NDArray[np.int64]:
    """Of each thread, by thread, where the first of its ids stands."""
    threads = ids >> np.uint64(ORDINAL_BITS)
    order = np.argsort(threads, kind="stable").astype(np.int64, copy=False)
    ordered = threads[order]
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    places: NDArray[np.int64] = order[first]
    return places
