"""Programs for the tests of folding: ranges of several threads and units, in the order of their
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

from helpers.batches import context, make_batch
from otel_recfn.batches.stage import Decided, Stage
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, make_event_id

LINKABLE = 1 << 31
NODE = 1 << 30
"""Flags of a program's row, beside those of EventFlag: it has a sequence number; it is a
backward node.
"""


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
    draw: st.DrawFn, thread: int = 1, most: int = 40, flags: Sequence[int] = (0,), names: int = 8
) -> list[Row]:
    """Ranges of one thread, of so many names. Durations nest."""
    here = _Thread(thread)
    count = draw(st.integers(0, most))

    def run(parent: int, depth: int) -> None:
        event_id = here.next_id()
        start = here.clock
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
                draw(st.integers(1, names)),
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
    """Ranges of several threads and units, also asynchronous ones, and such whose parent is
    another thread's, in the same unit, or never comes.
    """
    known_flags = (EventFlag.ASYNC, EventFlag.EXPOSED, EventFlag.ERROR, EventFlag.IN_COMPILATION)
    flags = (0, 0, 0, *map(int, known_flags), LINKABLE, NODE, NODE | int(EventFlag.EXPOSED))
    parts = [draw(nested(number, 25, flags)) for number in (1, 2, 3)]
    known = ([0, make_event_id(9, 1)], [0, make_event_id(9, 1)])
    moved = []
    for part in parts:
        unit = draw(st.integers(0, 1))
        below = draw(st.sampled_from(known[unit]))
        moved.append([replace(row, unit=unit, parent=row.parent or below) for row in part])
        known[unit].extend([row.event_id for row in part])
    merged: list[Row] = []
    while any(moved):
        merged.append(draw(st.sampled_from([part for part in moved if part])).pop(0))
    return _with_nodes(merged) if draw(st.booleans()) else merged


NODE_NAME, AROUND_NODE = 1, 4
"""What backward nodes and the ranges around them are called in ``CALLED``."""


def _with_nodes(rows: Sequence[Row]) -> list[Row]:
    """The same, where each range around a backward node is called so."""
    enclosing = {row.parent for row in rows if row.flags & NODE}
    names = dict.fromkeys(enclosing, AROUND_NODE) | {
        row.event_id: NODE_NAME for row in rows if row.flags & NODE
    }
    return [replace(row, name=names.get(row.event_id, row.name)) for row in rows]


SPAN = 100
"""The span above the ranges of the first unit."""
MODULE = {"source": EventSource.MODULE}
USER = {"scope": RecordScope.USER_SCOPE}
CALLED: dict[int, dict[str, Any]] = {
    2: {"name": "name 2", **USER},
    AROUND_NODE: {"name": "autograd::engine::evaluate_function: name 1"},
    5: {"name": "nn.Module: Block_0", "module": "layers.0", **MODULE},
    6: {"name": "nn.Module: Block_1", "module": "layers.1", **MODULE},
    7: {"name": "nn.Module: Linear_0", "module": "layers.1", **MODULE},
    8: {"name": "nn.Module: Block_2", **MODULE},
}
"""What some numbers of names stand for."""


def batch_of(rows: Sequence[Row], scope: RecordScope | None = None) -> Batch:
    """These rows, in this order, below the spans of their units.

    All have the ``scope``, if one is given: operators (``FUNCTION``) that only call another one
    have no span, ranges of ``USER_SCOPE`` have.
    """
    fields = [
        {
            "event_id": row.event_id,
            **CALLED.get(row.name, {"name": f"name {row.name}"}),
            **({"scope": RecordScope.BACKWARD_FUNCTION} if row.flags & NODE else {}),
            **({"scope": scope} if scope is not None else {}),
            "start_ns": row.start_ns,
            "end_ns": row.start_ns + row.duration_ns,
            "flags": row.flags & ~(LINKABLE | NODE),
            "sequence_nr": 0 if row.flags & LINKABLE else -1,
            "context": context(1, SPAN + row.unit),
            "cpu_time_ns": row.cpu_time_ns,
        }
        for row in rows
    ]
    # Also of ranges that lie in each other.
    parent = np.array([row.parent for row in rows], np.uint64)
    batch = make_batch(fields)
    return replace(batch, parent=parent, root=np.where(parent == 0, batch.event_id, parent))


MAX_BUDGET = 12
"""What the stages here keep of a unit at most."""


def decided(batches: Sequence[Batch], budget: int, *, unit: int = 0, duration_ns: int) -> Decided:
    """One unit, whose span took so long, when these batches have come."""
    stage = Stage(max(budget, MAX_BUDGET))
    above = SpanContext(1, SPAN + unit, False)
    for batch in batches:
        stage.add(batch, {})
    number = stage.find(above)
    assert number is not None
    stage.end_span(number, ended_by_ns=0, start_ns=0, end_ns=duration_ns, failed=False)
    return stage.decide([(number, budget)], [above], is_partial=False)
