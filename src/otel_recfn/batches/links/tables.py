"""What remembered forward ranges index: tracks and contexts of many batches, and which thread has which number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.distinct import Distinct
from otel_recfn.model.batch import Batch, SpanContextRef, Track

Indices = NDArray[np.uint32]


class LinkTables:
    """Of one finder of links."""

    def __init__(self) -> None:
        self.tracks: Distinct[Track] = Distinct()
        self.contexts: Distinct[SpanContextRef] = Distinct()
        self._thread_numbers: dict[int, int] = {}

    def note_threads(self, batch: Batch) -> None:
        """Forward ranges of this batch are remembered."""
        self._thread_numbers.update({each.thread_id: each.number for each in batch.tracks if each.is_thread})

    def numbers_of(self, thread_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The recorder's numbers of these logical threads; 0, which no thread has, for an unknown one."""
        return np.array([self._thread_numbers.get(number, 0) for number in thread_ids.tolist()], dtype=np.uint64)

    def of_used(self, tracks: Indices, contexts: Indices) -> LinkTables:
        """Tables of what these ranges index alone."""
        smaller = LinkTables()
        smaller.tracks.by_index(self.tracks.values, tracks)
        smaller.contexts.by_index(self.contexts.values, contexts)
        smaller._thread_numbers = {each.thread_id: each.number for each in smaller.tracks.values if each.is_thread}
        return smaller


def thread_numbers(batch: Batch) -> NDArray[np.uint64]:
    """The recorder's number of each of its tracks."""
    return np.array([track.number for track in batch.tracks], np.uint64)
