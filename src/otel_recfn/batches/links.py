"""From a backward range to its forward range.

Autograd gives each graph node a sequence number that counts up in the thread that makes it, and the operators running at that
moment carry the number too. The node's backward range carries it again, with the logical id of the thread of the forward.
Several forward ranges can share a number (``aten::linear`` and the ``aten::t`` inside it; an operator that makes no node and
the next one that does): the one that started last made the node, because making it moves the number on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.merging import Distinct
from otel_recfn.model.batch import Batch, Track

Indices = NDArray[np.uint32]
MAX_FORWARD_RANGES = 1_000_000
"""How many forward ranges wait for a backward: 56 to 72 bytes each, many steps of a large model."""
MAX_MATCHED_RANGES = 1 << 16
"""How many are remembered that have a backward: for another one through the same graph, which few programs have."""


class Links(NamedTuple):
    """Backward rows of a batch with their forward ranges, as columns of equal length in row order."""

    row: NDArray[np.int64]
    """Index of the backward row in the batch."""
    event_id: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    """Index into ``tracks``."""
    tracks: Sequence[Track]


_KINDS: tuple[Any, ...] = (np.int64, np.uint64, np.int64, np.int64, np.uint32)
_NO_LINKS = [np.zeros(0, kind) for kind in _KINDS]


class LinkFinder:
    """Finds the forward range of each backward range, across batches and in bounded memory.

    Args:
        max_forward_ranges: how many to remember; beyond it the quarter that started first is forgotten and counted.
        max_matched_ranges: how many of them that have a backward; beyond it the quarter that started first is forgotten.
    """

    def __init__(self, max_forward_ranges: int = MAX_FORWARD_RANGES, max_matched_ranges: int = MAX_MATCHED_RANGES) -> None:
        self._limit, self._most_matched = max_forward_ranges, max_matched_ranges
        self._ranges = _native.ForwardRanges()
        self._tables = _Tables()
        self.forgotten = 0
        """Forward ranges that were given up to stay within the limit."""

    def __len__(self) -> int:
        return len(self._ranges)

    def match(self, batch: Batch) -> Links:
        """Remember the batch's forward ranges, then find those of its backward rows; once per batch."""
        tracks, thread_ids = _columns(self._ranges.used_in(batch, len(batch.tracks)), (np.uint32, np.uint64))
        if not len(tracks) and not len(thread_ids):  # as in most batches of a program without gradients
            return self._links(_NO_LINKS)
        if len(tracks):
            self._tables.note_threads(batch)
        track, numbers = self._tables.tracks.by_index(batch.tracks, tracks), self._tables.numbers_of(thread_ids)
        found = self._ranges.match(batch, _thread_numbers(batch), track, thread_ids, numbers)
        self._forget_some()
        return self._links(_columns(found, _KINDS))

    def _links(self, columns: Sequence[NDArray[Any]]) -> Links:
        row, event_id, start_ns, end_ns, thread = columns
        return Links(row, event_id, start_ns, end_ns, thread, self._tables.tracks.values)

    def _forget_some(self) -> None:
        matched = self._ranges.matched()
        if matched > self._most_matched:
            self._forget(matched - self._most_matched * 3 // 4, only_matched=True)
        count = len(self._ranges)
        if count > self._limit:
            self._forget(count - self._limit * 3 // 4, only_matched=False)
            self.forgotten += count - len(self._ranges)

    def _forget(self, count: int, *, only_matched: bool) -> None:
        (tracks,) = _columns(self._ranges.forget_first(count, only_matched), (np.uint32,))
        smaller = self._tables.of_used(tracks)
        self._ranges.renumber(smaller.tracks.by_index(self._tables.tracks.values, tracks))
        self._tables = smaller


class _Tables:
    """What remembered forward ranges index: tracks of many batches, and which thread has which number."""

    def __init__(self) -> None:
        self.tracks: Distinct[Track] = Distinct()
        self._thread_numbers: dict[int, int] = {}

    def note_threads(self, batch: Batch) -> None:
        """Forward ranges of this batch are remembered."""
        self._thread_numbers.update({each.thread_id: each.number for each in batch.tracks if each.is_thread})

    def numbers_of(self, thread_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The recorder's numbers of these logical threads; 0, which no thread has, for an unknown one."""
        return np.array([self._thread_numbers.get(number, 0) for number in thread_ids.tolist()], dtype=np.uint64)

    def of_used(self, tracks: Indices) -> _Tables:
        """Tables of what these ranges index alone."""
        smaller = _Tables()
        smaller.tracks.by_index(self.tracks.values, tracks)
        smaller._thread_numbers = {each.thread_id: each.number for each in smaller.tracks.values if each.is_thread}
        return smaller


def _thread_numbers(batch: Batch) -> NDArray[np.uint64]:
    """The recorder's number of each of its tracks."""
    return np.array([track.number for track in batch.tracks], np.uint64)


def _columns(raw: tuple[Any, ...], kinds: tuple[Any, ...]) -> list[NDArray[Any]]:
    return [np.frombuffer(column, kind) for column, kind in zip(raw, kinds, strict=True)]
