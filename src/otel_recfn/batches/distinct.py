"""Distinct values that columns of several batches point at by index."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", bound=Hashable)


class Distinct(Generic[Value]):
    """Values in the order in which they were first used.

    Args:
        first: those that are there from the beginning.

    Attributes:
        values: all so far.
    """

    def __init__(self, first: Iterable[Value] = ()) -> None:
        self.values = list(first)
        self._index = {value: index for index, value in enumerate(self.values)}

    def indices(self, values: Sequence[Value], used: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """From indices into ``values`` to indices into ours; values that nobody uses are not taken over."""
        translation = np.zeros(len(values), dtype=np.uint32)
        for position in np.flatnonzero(np.bincount(used, minlength=len(values))).tolist():
            translation[position] = self._index_of(values[position])
        return np.take(translation, used)

    def _index_of(self, value: Value) -> int:
        index = self._index.get(value)
        if index is None:
            index = len(self.values)
            self.values.append(value)
            self._index[value] = index
        return index
