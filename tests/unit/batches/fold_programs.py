"""Programs for the tests of folding: ranges of several threads and units, in the order of their ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import strategies as st

from models.folding import LINKABLE, FoldModel
from otel_recfn.batches.fold.finished import FinishedUnits
from otel_recfn.batches.fold.units import Fold, PlannedRanges
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.model.scope import RecordScope

AnyFold = Fold | FoldModel


@dataclass(frozen=True)
class Row:
    event_id: int
    parent: int
    name: int
    start_ns: int
    duration_ns: int
    flags: int = 0
    unit: int = 0


@dataclass
class _Thread:
    number: int
    clock: int = 0
    begun: int = 0
    rows: list[Row] = field(default_factory=list)

    def next_id(self) -> int:
        self.begun += 1
        return make_event_id(self.number, self.begun)


@st.composite
def nested(draw: st.DrawFn, thread: int = 1, most: int = 40, flags: Sequence[int] = (0,)) -> list[Row]:
    """Ranges of one thread. Durations nest."""
    here, count = _Thread(thread), draw(st.integers(0, most))

    def run(parent: int, depth: int) -> None:
        event_id, start = here.next_id(), here.clock
        here.clock += draw(st.integers(0, 5))
        while depth < 6 and here.begun < count and draw(st.booleans()):
            run(event_id, depth + 1)
        here.clock += draw(st.integers(0, 5))
        drawn = draw(st.sampled_from(flags))
        here.rows.append(Row(event_id, parent, draw(st.integers(1, 3)), start, here.clock - start, drawn))

    while here.begun < count:
        run(0, 0)
    return here.rows


@st.composite
def threads(draw: st.DrawFn) -> list[Row]:
    """Ranges of several threads and units, also asynchronous ones, and such whose parent is another thread's or never comes."""
    flags = (0, 0, 0, int(EventFlag.ASYNC), int(EventFlag.SHOWN), int(EventFlag.ERROR), LINKABLE)
    parts = [draw(nested(number, 25, flags)) for number in (1, 2, 3)]
    known, moved = [0, make_event_id(9, 1)], []
    for part in parts:
        unit, below = draw(st.integers(0, 1)), draw(st.sampled_from(known))
        moved.append([replace(row, unit=unit, parent=row.parent or below) for row in part])
        known += [row.event_id for row in part]
    merged: list[Row] = []
    while any(moved):
        merged.append(draw(st.sampled_from([part for part in moved if part])).pop(0))
    return merged


def planned(rows: Sequence[Row]) -> PlannedRanges:
    """These rows, in a batch that has them in this order; a unit's number is the index of the span above, too."""

    def column(kind: type[np.generic], values: Iterable[int]) -> np.ndarray:
        return np.array([*values], kind)

    count = len(rows)
    batch = SimpleNamespace(
        event_id=column(np.uint64, [row.event_id for row in rows]),
        start_ns=column(np.int64, [row.start_ns for row in rows]),
        end_ns=column(np.int64, [row.start_ns + row.duration_ns for row in rows]),
        sequence_nr=np.full(count, -1, np.int64),
        name=column(np.uint32, [row.name for row in rows]),
        flags=column(np.uint32, [row.flags for row in rows]),
        scope=np.full(count, int(RecordScope.USER_SCOPE), np.uint8),
    )
    parent, above = column(np.uint64, [row.parent for row in rows]), column(np.int64, [row.unit for row in rows])
    units, names = [1 + max([getattr(row, name) for row in rows], default=0) for name in ("unit", "name")]
    unit, name = np.arange(units, dtype=np.uint32), np.arange(names, dtype=np.uint32)
    return PlannedRanges(cast(Batch, batch), np.arange(count), parent, above, unit, name, np.zeros(0, np.uint64))


def finished(
    fold: AnyFold, rows: Sequence[Row], budget: int, cuts: Sequence[int] = (), unit: int = 0, least_ns: int = 0
) -> FinishedUnits:
    """What one unit comes to when the rows are added in these pieces."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for first, last in itertools.pairwise(edges):
        fold.add_planned(planned(rows[first:last]), first)
    return fold.finish([unit], [budget], [least_ns], [False])


def same(one: FinishedUnits, other: FinishedUnits) -> None:
    for name, mine, theirs in zip(one._fields, one, other, strict=True):
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, name)
