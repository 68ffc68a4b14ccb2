"""The native twin of finding links: it keeps forward ranges by their numbers, and looks at each row twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.links.protocol import MAX_FORWARD_RANGES, MAX_MATCHED_RANGES, Links
from otel_recfn.batches.links.tables import LinkTables, thread_numbers
from otel_recfn.model.batch import Batch

_KINDS: tuple[Any, ...] = (np.int64, np.uint64, np.uint64, np.int64, np.int64, np.uint32, np.uint32)
_NO_LINKS = [np.zeros(0, kind) for kind in _KINDS]


class NativeLinks:
    """See ``FindsLinks``; as ``PythonLinks``.

    Args:
        max_forward_ranges: how many to remember; beyond it the quarter that started first is forgotten and counted.
        max_matched_ranges: how many of them that have a backward; beyond it the quarter that started first is forgotten.
    """

    def __init__(self, max_forward_ranges: int = MAX_FORWARD_RANGES, max_matched_ranges: int = MAX_MATCHED_RANGES) -> None:
        self._limit, self._most_matched = max_forward_ranges, max_matched_ranges
        self._ranges = _native.ForwardRanges()
        self._tables = LinkTables()
        self.forgotten = 0
        """Forward ranges that were given up to stay within the limit."""

    def __len__(self) -> int:
        return len(self._ranges)

    def match(self, batch: Batch) -> Links:
        """Remember the batch's forward ranges, then find those of its backward rows; once per batch."""
        used = self._ranges.used_in(batch, len(batch.tracks), len(batch.contexts))
        tracks, contexts, thread_ids = _columns(used, (np.uint32, np.uint32, np.uint64))
        tables = self._tables
        if not len(tracks) and not len(thread_ids):
            return self._none()
        if len(tracks):
            tables.note_threads(batch)
        track, context = tables.tracks.by_index(batch.tracks, tracks), tables.contexts.by_index(batch.contexts, contexts)
        numbers = tables.numbers_of(thread_ids)
        found = self._ranges.match(batch, thread_numbers(batch), track, context, thread_ids, numbers)
        self._forget_some()
        row, event_id, root, start_ns, end_ns, thread, own = _columns(found, _KINDS)
        return Links(row, event_id, root, start_ns, end_ns, thread, own, tables.tracks.values, tables.contexts.values)

    def _none(self) -> Links:
        """Of a batch that nothing is linked in, as most batches of a program without gradients are."""
        row, event_id, root, start_ns, end_ns, thread, context = _NO_LINKS
        tables = self._tables
        return Links(row, event_id, root, start_ns, end_ns, thread, context, tables.tracks.values, tables.contexts.values)

    def _forget_some(self) -> None:
        matched = self._ranges.matched()
        if matched > self._most_matched:
            self._forget(matched - self._most_matched * 3 // 4, only_matched=True)
        count = len(self._ranges)
        if count > self._limit:
            try:
                self._forget(count - self._limit * 3 // 4, only_matched=False)
            finally:  # they are gone also where there was no memory for smaller tables
                self.forgotten += count - len(self._ranges)

    def _forget(self, count: int, *, only_matched: bool) -> None:
        tracks, contexts = _columns(self._ranges.forget_first(count, only_matched), (np.uint32, np.uint32))
        smaller = self._tables.of_used(tracks, contexts)
        track = smaller.tracks.by_index(self._tables.tracks.values, tracks)
        self._ranges.renumber(track, smaller.contexts.by_index(self._tables.contexts.values, contexts))
        self._tables = smaller


def _columns(raw: tuple[Any, ...], kinds: tuple[Any, ...]) -> list[NDArray[Any]]:
    return [np.frombuffer(column, kind) for column, kind in zip(raw, kinds, strict=True)]
