"""Sums of durations by series: exact counts and nanoseconds, and counts per bucket, which native
code adds a batch to.

A series is what ranges of one scope and name are in, as many as there may be, and one for all
others. Durations are whole nanoseconds here, and seconds, as floating point numbers, in the
histograms of the SDK; both agree on the bucket of every duration, also of one that is as long as a
bucket's bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from math import nextafter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.number_sets import Indices, equals, groups
from otel_recfn.batches.span_names import recorded_call_name
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import NUM_SCOPES, EventFlag, EventSource, RowKind
from otel_recfn.support.texts import utf8_text

Numbers = NDArray[np.int64]
Bounds: TypeAlias = "tuple[float, ...]"
"""The bounds of a histogram's buckets, in seconds, ascending."""
Slots: TypeAlias = NDArray[np.int32]
"""The series of each ``name * NUM_SCOPES + scope``; -1 if it isn't known yet."""

MAX_SERIES = 1000
OVERFLOW = 0
"""The number of the series for ranges that have none of their own."""
MIN_CAPACITY = 64
SECOND_NS = 1e9
LONGEST_NS = (1 << 63) - 1
_DONT_COUNT = np.uint32(EventFlag.IN_COMPILATION)
"""The flag of ranges that have no series: operators that a compiler tries out."""
FIELDS = 8
"""The number of columns, in 64 bytes."""


class Series(NamedTuple):
    """The scope and name that the ranges of a series share."""

    scope: int
    name: str


class SeriesTable:
    """The numbers of series, from 1, given to those of one batch in the order of their names in
    its table.

    ``torch_names``: module calls have torch.profiler's names, and not those of spans.
    """

    def __init__(self, max_series: int = MAX_SERIES, *, torch_names: bool = False) -> None:
        self._max_series = max_series
        self._torch_names = torch_names
        self.series: list[Series | None] = [None]
        """The series by number; None stands for the one of all others."""
        self._numbers: dict[Series, int] = {}
        self._names: Sequence[str] = ()
        self._slots: Slots = np.zeros(0, np.int32)

    def row_series(self, batch: Batch) -> Slots:
        """The series of each row; negative if it has none. New series get a number."""
        slots = self._slots_for(batch)
        keys = batch.name.astype(np.int64) * NUM_SCOPES + batch.scope.astype(np.int64)
        counts = equals(batch.kind, RowKind.RANGE) & ((batch.flags & _DONT_COUNT) == 0)
        is_call = counts & equals(batch.source, EventSource.MODULE)
        if self._torch_names:
            is_call[:] = False
        is_new = np.zeros(len(slots), np.bool_)
        is_new[keys[counts & ~is_call & (slots[keys] < 0)]] = True
        for key in np.flatnonzero(is_new).tolist():
            name, scope = divmod(key, NUM_SCOPES)
            slots[key] = self._number(Series(scope, utf8_text(batch.names[name])))
        numbers: Slots = np.where(counts, slots[keys], np.int32(-1))
        calls = np.flatnonzero(is_call)
        if len(calls):
            numbers[calls] = self._call_series(batch, calls)
        return numbers

    def _call_series(self, batch: Batch, calls: Indices) -> Slots:
        """The series of these calls of modules, whose names follow from several columns."""
        size = len(batch.names)
        keys = np.zeros(len(calls), np.int64)
        for column in (batch.name, batch.module, batch.enclosing_module):
            keys = keys * size + column[calls].astype(np.int64)
        distinct_calls = groups(keys)
        numbers = []
        for row in calls[distinct_calls.first].tolist():
            texts = (batch.name[row], batch.module[row], batch.enclosing_module[row])
            name = recorded_call_name(*[batch.names[text] for text in texts])
            numbers.append(self._number(Series(int(batch.scope[row]), utf8_text(name))))
        return np.array(numbers, np.int32)[np.searchsorted(distinct_calls.numbers, keys)]

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

    def _number(self, series: Series) -> int:
        number = self._numbers.get(series)
        if number is None:
            if len(self.series) > self._max_series:
                return OVERFLOW
            number = self._numbers[series] = len(self.series)
            self.series.append(series)
        return number


class SumColumn(IntEnum):
    """The columns of ``DurationSums.series``, in nanoseconds."""

    COUNT = 0
    TOTAL = 1
    MINIMUM = 2
    """The shortest duration; without meaning where ``COUNT`` is 0."""
    MAXIMUM = 3
    LAST = 4


class DurationSums:
    """Arrays with a row for each series; rows behind the last one are empty.

    ``min_ns`` are those of ``min_above``.
    """

    def __init__(self, min_ns: list[Numbers], capacity: int = MIN_CAPACITY) -> None:
        self.min_ns = min_ns
        self.series: Numbers = np.zeros((capacity, FIELDS), np.int64)
        self.buckets: list[Numbers] = [
            np.zeros((capacity, len(least) + 1), np.int64) for least in min_ns
        ]

    def make_room(self, series: int) -> None:
        """Make room for so many series."""
        capacity = len(self.series)
        if series > capacity:
            more = DurationSums(self.min_ns, max(series, 2 * capacity))
            for old, new in zip(
                (self.series, *self.buckets), (more.series, *more.buckets), strict=True
            ):
                new[:capacity] = old
            self.series, self.buckets = more.series, more.buckets

    def add(self, batch: Batch, numbers: Slots) -> None:
        """Add a batch, whose rows are of these series, all of which have room."""
        _native.add_durations(
            batch, numbers, self.series, list(zip(self.min_ns, self.buckets, strict=True))
        )

    def filled_series(self) -> list[int]:
        """The series that have any durations."""
        found: list[int] = np.flatnonzero(self.series[:, SumColumn.COUNT]).tolist()
        return found


def min_above(bounds: Iterable[float]) -> Numbers:
    """The shortest duration above each bound: the least whole number of nanoseconds that is more
    than so many seconds, both as floating point numbers.
    """
    return np.array([_min_above(bound) for bound in bounds], np.int64)


def _min_above(bound: float) -> int:
    if bound < 0:
        return 0
    near = int(min(bound * SECOND_NS, float(LONGEST_NS)))
    # A product and a division may be off by this much.
    slack = 2 + 4 * int(nextafter(float(near), float("inf")) - float(near))
    low = max(0, near - slack)
    high = min(near + slack, LONGEST_NS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle / SECOND_NS > bound else (middle + 1, high)
    return low
