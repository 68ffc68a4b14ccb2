"""The ranges that folding keeps for now, until their unit is finished: their rows, and what they link to.

They are found by the numbers that rows are given as they come. So a batch is held as it came, and what folding let go of it is
dropped now and then, for many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.fold.finished import Ids, Places
from otel_recfn.batches.fold.gathered import ColumnTypes, gather, gathered
from otel_recfn.batches.merging import merged
from otel_recfn.batches.number_sets import distinct
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.empty_columns import empty_column, shared_column

ROWS_TO_SPARE = 1 << 15
"""So many rows may be held in vain, some 5 MB, before they are looked through."""
MOST_BATCHES = 32
"""More are put together: each is searched when a unit is finished."""
_NO_PLACES, _NO_IDS = np.zeros(0, np.int64), np.zeros(0, np.uint64)


class KeptRanges(NamedTuple):
    """Rows, and columns of equal length of what they link to."""

    batch: Batch
    linked_id: Ids
    """As in a plan: 0 where it links to nothing."""
    linked_above: Places
    """Index into ``spans``."""
    spans: Sequence[SpanContext]


class _Held(NamedTuple):
    """Of one batch, or of several that were put together."""

    first: int
    """The number of the first one."""
    end: int
    """After the number of the last one."""
    number: Places | None
    """In ascending order; None: all from the first to the last one."""
    row: Places
    """Its place in the batch."""
    batch: Batch
    linked_id: Ids
    linked_above: Places
    spans: Sequence[SpanContext]

    def find(self, numbers: Places) -> Places:
        """Where these stand, which are there."""
        if self.number is None:
            return numbers - self.first
        return np.searchsorted(self.number, numbers).astype(np.int64, copy=False)


_ROWS: ColumnTypes = {"row": np.dtype(np.int64)}
_COLUMNS: ColumnTypes = {**_ROWS, "linked_id": np.dtype(np.uint64), "linked_above": np.dtype(np.int64)}
"""Of what is held, one value for each number."""


class KeptRows:
    """Rows of several batches.

    Args:
        kept: the numbers of the rows that are kept at the moment, in ascending order.
    """

    def __init__(self, kept: Callable[[], Places]) -> None:
        self._kept = kept
        self._held: list[_Held] = []
        self._numbers = self._rows = 0
        self._most = ROWS_TO_SPARE
        self._nothing = _as_ranges(_together([]))

    def __len__(self) -> int:
        return self._rows

    def make_room(self) -> None:
        """Drop what isn't kept, if it is much. Before the next rows come: by then many units of the last ones are decided."""
        if self._rows > self._most or len(self._held) >= MOST_BATCHES:
            self._compact()

    def new_numbers(self, count: int) -> int:
        """Numbers for rows that are to come, each given once. The first one."""
        first = self._numbers
        self._numbers += count
        return first

    def add(self, plan: SpanPlan, first: int) -> None:
        """Rows of a plan, which have the numbers from ``first`` on."""
        if not len(plan.row):
            return
        links = (plan.linked_id, plan.linked_above, plan.spans_above)
        self._held.append(_Held(first, first + len(plan.row), None, plan.row, plan.batch, *links))
        self._rows += len(plan.batch)

    def take(self, numbers: Places) -> KeptRanges:
        """The rows with these numbers, which are kept, in this order."""
        if not len(numbers):
            return self._nothing
        first = np.array([held.first for held in self._held], np.int64)
        part = np.searchsorted(first, numbers, "right") - 1
        used = np.flatnonzero(np.bincount(part))
        held, part = [self._held[at] for at in used.tolist()], np.searchsorted(used, part).astype(np.int64, copy=False)
        place = numbers - first[used][part]
        for at, one in enumerate(held):
            if one.number is not None:
                here = np.flatnonzero(part == at)
                place[here] = one.find(numbers[here])
        return _taken(held, part, place)

    def _compact(self) -> None:
        kept = self._kept()
        self._held = [held for held in self._held if _has_any(held, kept)]
        self._rows = sum(len(held.batch) for held in self._held)
        if self._rows > ROWS_TO_SPARE or len(self._held) > MOST_BATCHES // 2:
            held = _together(self._parts(kept))
            self._held, self._rows = [held] if len(held.row) else [], len(held.row)
        self._most = 2 * self._rows + ROWS_TO_SPARE

    def _parts(self, numbers: Places) -> list[_Held]:
        """What is held of these numbers, which ascend."""
        parts = []
        for held in self._held:
            first, last = np.searchsorted(numbers, (held.first, held.end)).tolist()
            if first < last:
                parts.append(_part(held, numbers[first:last]))
        return parts


def _has_any(held: _Held, numbers: Places) -> bool:
    """Whether one of these numbers, which ascend, may be of it."""
    first, last = np.searchsorted(numbers, (held.first, held.end)).tolist()
    return bool(first < last)


def _part(held: _Held, numbers: Places) -> _Held:
    place = held.find(numbers)
    own = gather(_COLUMNS, [held], np.zeros_like(place), place)
    batch = gathered([held.batch], np.zeros_like(place), own["row"])
    return _Held(held.first, held.end, numbers, place, batch, own["linked_id"], own["linked_above"], held.spans)


def _taken(held: Sequence[_Held], part: Places, place: Places) -> KeptRanges:
    """The rows at these places of these parts of what is held."""
    has_links = not all(one.linked_id.base is shared_column(np.uint64) for one in held)
    own = gather(_COLUMNS if has_links else _ROWS, held, part, place)
    linked_id = own["linked_id"] if has_links else empty_column(np.uint64, len(place))
    linked_above = np.zeros_like(place)
    spans: list[SpanContext] = []
    if has_links and linked_id.any():
        begins = []
        for one in held:
            begins.append(len(spans))
            spans += one.spans
        linked_above = np.where(linked_id != 0, own["linked_above"] + np.array(begins, np.int64)[part], 0)
    return KeptRanges(gathered([one.batch for one in held], part, own["row"]), linked_id, linked_above, spans)


def _together(parts: Sequence[_Held]) -> _Held:
    spans: list[SpanContext] = []
    linked_above = []
    for part in parts:
        used, above = _used(part)
        linked_above.append(above + len(spans))
        spans += used
    number = np.concatenate([_NO_PLACES, *[_NO_PLACES if part.number is None else part.number for part in parts]])
    linked_id = np.concatenate([_NO_IDS, *[part.linked_id for part in parts]])
    batch = parts[0].batch if len(parts) == 1 else merged([part.batch for part in parts], keep_names=True)
    first, end = (int(number[0]), int(number[-1]) + 1) if len(number) else (0, 0)
    links = (linked_id, np.concatenate([_NO_PLACES, *linked_above]), spans)
    return _Held(first, end, number, np.arange(len(number)), batch, *links)


def _as_ranges(held: _Held) -> KeptRanges:
    return KeptRanges(held.batch, held.linked_id, held.linked_above, held.spans)


def _used(ranges: _Held) -> tuple[Sequence[SpanContext], Places]:
    """The spans that something is linked in, and ``linked_above`` as index into these."""
    used = distinct(ranges.linked_above[ranges.linked_id != 0])
    if not len(used):
        return (), np.zeros(len(ranges.linked_id), np.int64)
    spans = [ranges.spans[place] for place in used.tolist()]
    return spans, np.minimum(np.searchsorted(used, ranges.linked_above), len(used) - 1)
