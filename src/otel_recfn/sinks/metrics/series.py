"""Which series a range belongs to: one for each scope and name, as many as there may be, and one for all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import NUM_SCOPES
from otel_recfn.support.texts import text_of_utf8

MAX_SERIES = 1000
OVERFLOW = 0
"""The number of the series of all ranges that have none of their own."""

Slots: TypeAlias = NDArray[np.int32]
"""The series of each ``name * NUM_SCOPES + scope``; -1 where it isn't known yet."""


class Series(NamedTuple):
    """What the ranges of a series share."""

    scope: int
    name: str


class SeriesTable:
    """Numbers series in the order in which they are met, from 1.

    Args:
        max_series: how many there may be beside that of all others.

    Attributes:
        series: by number; None stands for the one of all others.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self.series: list[Series | None] = [None]
        self._numbers: dict[Series, int] = {}
        self._names: Sequence[str] = ()
        self._slots: Slots = np.zeros(0, np.int32)
        self._numbers_of_rows: Slots = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.series)

    def numbers_of(self, batch: Batch) -> Slots:
        """The series of each row; new ones are met here. Negative where it has none: no range, or a partial one.

        The next call overwrites it.
        """
        if len(self._numbers_of_rows) < len(batch):
            self._numbers_of_rows = np.empty(2 * len(batch), np.int32)
        slots, numbers = self._slots_for(batch), self._numbers_of_rows[: len(batch)]
        if unknown := _native.find_series(batch, slots, numbers):
            self._learn(unknown)
            _native.find_series(batch, slots, numbers)
        return numbers

    def _slots_for(self, batch: Batch) -> Slots:
        """The table for the names of a batch. Batches that share a list of names share it too."""
        needed = len(batch.names) * NUM_SCOPES
        if batch.names is not self._names:
            self._slots = np.full(needed, -1, np.int32)
            self._names = batch.names
        elif needed > len(self._slots):
            more = np.full(2 * needed, -1, np.int32)
            more[: len(self._slots)] = self._slots
            self._slots = more
        return self._slots

    def _learn(self, keys: Iterable[int]) -> None:
        """Fill these places of the table that was asked for last."""
        for key in dict.fromkeys(keys):
            name, scope = divmod(key, NUM_SCOPES)
            self._slots[key] = self._number(Series(scope, text_of_utf8(self._names[name])))

    def _number(self, series: Series) -> int:
        number = self._numbers.get(series)
        if number is None:
            if len(self.series) > self._max_series:
                return OVERFLOW
            number = len(self.series)
            self.series.append(series)
            self._numbers[series] = number
        return number
