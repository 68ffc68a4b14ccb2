"""Several batches as one: their rows in order, their tables joined, each value once."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import (
    COLUMN_TYPES,
    NO_CONTEXT,
    TEXT_COLUMNS,
    Batch,
    SpanContextRef,
    Track,
    empty_column,
    empty_in_all,
)
from otel_recfn.model.columns import CONTEXT_COLUMNS, TRACK_COLUMNS

Value = TypeVar("Value", bound=Hashable)


UNKNOWN = np.iinfo(np.uint32).max


class Distinct(Generic[Value]):
    """Values in the order in which they were first used.

    Batches that follow each other mostly index the same list, which only grows: where its values stand is remembered.

    Args:
        first: those that are there from the beginning.

    Attributes:
        values: all so far.
    """

    def __init__(self, first: Iterable[Value] = ()) -> None:
        self.values = list(first)
        self._index = {value: index for index, value in enumerate(self.values)}
        self._translated: Sequence[Value] = ()
        """What came last, and where each of it that was used stands in ``values``."""
        self._translation = np.zeros(0, np.uint32)

    def indices(self, values: Sequence[Value], used: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """From indices into ``values`` to indices into ours; values that nobody uses are not taken over."""
        translation = self._translation_of(values)
        unknown = np.take(translation, used) == UNKNOWN
        if unknown.any():
            for position in np.flatnonzero(np.bincount(used[unknown])).tolist():
                translation[position] = self._index_of(values[position])
        return np.take(translation, used)

    def all_of(self, values: Sequence[Value]) -> NDArray[np.uint32]:
        """The indices into ours of all of these."""
        translation = self._translation_of(values)
        for position in np.flatnonzero(translation == UNKNOWN).tolist():
            translation[position] = self._index_of(values[position])
        return translation

    def _translation_of(self, values: Sequence[Value]) -> NDArray[np.uint32]:
        known = self._translation if values is self._translated else self._translation[:0]
        if values is not self._translated or len(known) < len(values):
            more = np.full(len(values) - len(known), UNKNOWN, np.uint32)
            self._translated, self._translation = values, np.append(known, more)
        return self._translation

    def _index_of(self, value: Value) -> int:
        index = self._index.get(value)
        if index is None:
            index = len(self.values)
            self.values.append(value)
            self._index[value] = index
        return index


def merged(batches: Sequence[Batch], *, keep_names: bool = False) -> Batch:
    """One batch of all rows. Of a track that is in several batches the last one's name is taken.

    Args:
        batches: the batches.
        keep_names: where all have the same table of names, keep that, also what none of their rows uses.
    """
    if keep_names and batches and all(batch.names is batches[0].names for batch in batches):
        return _joined(batches, _Unchanged(batches[0].names))
    return _joined(batches, Distinct([""]))


def _joined(batches: Sequence[Batch], names: Distinct[str] | _Unchanged) -> Batch:
    contexts: Distinct[SpanContextRef] = Distinct([NO_CONTEXT])
    tracks = _Tracks()
    empty = empty_in_all(batches)
    parts = [_translated(batch, names, contexts, tracks, empty) for batch in batches]
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, dtype)
        for name, dtype in COLUMN_TYPES.items()
        if name not in empty
    }
    rows = sum(len(batch) for batch in batches)
    for name, column in empty.items():
        columns[name] = empty_column(column.dtype, rows, column.empty)
    drained_ns = max((batch.drained_ns for batch in batches), default=0)
    return Batch(**columns, names=names.values, tracks=tracks.known, contexts=contexts.values, drained_ns=drained_ns)


def _translated(
    batch: Batch,
    names: Distinct[str] | _Unchanged,
    contexts: Distinct[SpanContextRef],
    tracks: _Tracks,
    empty: Container[str],
) -> dict[str, NDArray[Any]]:
    columns = {name: getattr(batch, name) for name in COLUMN_TYPES if name not in empty}
    for column in [name for name in TEXT_COLUMNS if name not in empty]:
        columns[column] = names.indices(batch.names, columns[column])
    for column in CONTEXT_COLUMNS:
        columns[column] = contexts.indices(batch.contexts, columns[column])
    by_index = tracks.indices(batch.tracks)
    for column in TRACK_COLUMNS:
        columns[column] = np.take(by_index, columns[column])
    return columns


class _Unchanged:
    """A table of names that is taken over as it is."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = values

    def indices(self, values: Sequence[str], used: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """They stay as they are."""
        del values
        return used


class _Tracks:
    """Tracks by their number; a later batch may know a thread's name that an earlier one didn't."""

    def __init__(self) -> None:
        self.known: list[Track] = []
        self._index: dict[int, int] = {}

    def indices(self, tracks: Sequence[Track]) -> NDArray[np.uint32]:
        """Where each of these stands in ``known``."""
        return np.array([self._index_of(track) for track in tracks], np.uint32)

    def _index_of(self, track: Track) -> int:
        index = self._index.get(track.number)
        if index is None:
            index = len(self.known)
            self.known.append(track)
            self._index[track.number] = index
        elif track.name or not self.known[index].name:
            self.known[index] = track
        return index
