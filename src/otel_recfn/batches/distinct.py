"""Distinct values that columns of several batches point at by index."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

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
