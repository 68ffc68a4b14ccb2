"""Programs for the tests of folding: ranges of several threads and units, in the order of their ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from batches import context, make_batch
from models.finished import FinishedUnits
from models.folding import LINKABLE, FoldModel, PlannedRanges
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventSource, make_event_id


@dataclass(frozen=True)
class Row:
    event_id: int
    parent: int
    name: int
    start_ns: int
    duration_ns: int
    flags: int = 0
    unit: int = 0
    cpu_time_ns: int = -1


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
def nested(
    draw: st.DrawFn, thread: int = 1, most: int = 40, flags: Sequence[int] = (0,)
) -> list[Row]:
    """Ranges of one thread. Durations nest."""
    here, count = _Thread(thread), draw(st.integers(0, most))

    def run(parent: int, depth: int) -> None:
        event_id, start = here.next_id(), here.clock
        here.clock += draw(st.integers(0, 5))
        while depth < 6 and here.begun < count and draw(st.booleans()):
            run(event_id, depth + 1)
        here.clock += draw(st.integers(0, 5))
        drawn = draw(st.sampled_from(flags))
        worked = draw(st.integers(-1, 5))
        here.rows.append(
            Row(
                event_id,
                parent,
                draw(st.integers(1, 8)),
                start,
                here.clock - start,
                drawn,
                cpu_time_ns=worked,
            )
        )

    while here.begun < count:
        run(0, 0)
    return here.rows


@st.composite
def threads(draw: st.DrawFn) -> list[Row]:
    """Ranges of several threads and units, also asynchronous ones, and such whose parent is another thread's or never comes."""
    flags = (
        0,
        0,
        0,
        int(EventFlag.ASYNC),
        int(EventFlag.SHOWN),
        int(EventFlag.ERROR),
        LINKABLE,
        int(EventFlag.IN_COMPILATION),
    )
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


SPAN = 100
"""The span above the ranges of the first unit."""
MODULE = {"source": EventSource.MODULE}
CALLED: dict[int, dict[str, Any]] = {
    4: {"name": "autograd::engine::evaluate_function: name 1"},
    5: {"name": "nn.Module: Block_0", "module": "layers.0", **MODULE},
    6: {"name": "nn.Module: Block_1", "module": "layers.1", **MODULE},
    7: {"name": "nn.Module: Linear_0", "module": "layers.1", **MODULE},
    8: {"name": "nn.Module: Block_2", **MODULE},
}
"""What some numbers of names stand for."""


def batch_of(rows: Sequence[Row]) -> Batch:
    """These rows, in this order, below the spans of their units."""
    told = [
        {
            "event_id": row.event_id,
            **CALLED.get(row.name, {"name": f"name {row.name}"}),
            "start_ns": row.start_ns,
            "end_ns": row.start_ns + row.duration_ns,
            "flags": row.flags & ~LINKABLE,
            "sequence_nr": 0 if row.flags & LINKABLE else -1,
            "context": context(1, SPAN + row.unit),
            "cpu_time_ns": row.cpu_time_ns,
        }
        for row in rows
    ]
    parent = np.array(
        [row.parent for row in rows], np.uint64
    )  # also of ranges that lie in each other
    return replace(make_batch(told), parent=parent, root=parent)


def planned(rows: Sequence[Row]) -> PlannedRanges:
    """The same, planned."""
    batch = batch_of(rows)
    name, nothing = np.array([row.name for row in rows], np.uint32), np.zeros(len(rows), np.uint32)
    unit = np.array([row.unit for row in rows], np.uint32)
    called = (name, name, nothing, nothing)
    return PlannedRanges(
        batch, np.arange(len(rows)), batch.parent, unit, *called, np.zeros(0, np.uint64)
    )


def finished(
    fold: FoldModel,
    rows: Sequence[Row],
    budget: int,
    cuts: Sequence[int] = (),
    unit: int = 0,
    duration_ns: int = 0,
) -> FinishedUnits:
    """What one unit comes to when the rows are added in these pieces."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for first, last in itertools.pairwise(edges):
        fold.add_planned(planned(rows[first:last]), first)
    return fold.finish([unit], [budget], [duration_ns], [False])


def same(one: FinishedUnits, other: FinishedUnits) -> None:
    for name, mine, theirs in zip(one._fields, one, other, strict=True):
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, name)
