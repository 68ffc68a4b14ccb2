"""A capture's view: what it asked for, since it began, with the tree closed over what it doesn't
see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, make_batch
from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected, Selection
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    RowKind,
    make_event_id,
)

pytestmark = pytest.mark.one_python

FUNCTION = 1 << RecordScope.FUNCTION
BACKWARD = 1 << RecordScope.BACKWARD_FUNCTION
USER = 1 << RecordScope.USER_SCOPE


@dataclass
class OneThread:
    """A recorder of one thread that drains as the real ones do, with copies of what is open."""

    now: int = 0
    begun: int = 0

    def __post_init__(self) -> None:
        self.open: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []

    def begin(self, scope: RecordScope = RecordScope.FUNCTION, **columns: Any) -> int:
        self.begun = self.begun + 1
        self.now = self.now + 1
        event_id = make_event_id(MAIN_THREAD.number, self.begun)
        above = self.open[-1] if self.open else None
        parent, root = (above["event_id"], above["root"]) if above else (0, event_id)
        row = {
            "event_id": event_id,
            "scope": scope,
            "start_ns": BASE_NS + self.now,
            "parent": parent,
            "root": root,
        }
        self.open.append({**row, **columns})
        return event_id

    def end(self) -> None:
        self.now += 1
        self.closed.append({**self.open.pop(), "end_ns": BASE_NS + self.now})

    def point(self, kind: RowKind, **columns: Any) -> int:
        event_id = self.begin(kind=kind, **columns)
        self.closed.append({**self.open.pop(), "end_ns": BASE_NS + self.now})
        return event_id

    def drain(self) -> Batch:
        copies = [
            {**row, "end_ns": BASE_NS + self.now, "flags": EventFlag.PARTIAL}
            for row in reversed(self.open)
        ]
        rows, self.closed = self.closed, []
        return replace(make_batch([*rows, *copies]), closed=len(rows))


def tree(events: Sequence[Event]) -> dict[int, int]:
    return {event.event_id: event.parent for event in events}


def test_the_last_view_has_open_ranges_as_partial_ones() -> None:
    thread = OneThread()
    view = Selection(Selected())
    outer = thread.begin()
    thread.point(RowKind.RANGE)
    assert outer not in tree(list(view.view(thread.drain()).events()))
    last = list(view.view(thread.drain(), last=True).events())
    assert [(event.event_id, event.flags) for event in last] == [(outer, EventFlag.PARTIAL)]


def test_module_calls_are_asked_for_as_a_source_whatever_their_scope() -> None:
    thread = OneThread()
    thread.begin(RecordScope.USER_SCOPE, source=EventSource.MODULE)
    thread.end()
    batch = thread.drain()
    assert len(Selection(Selected(scopes=USER)).view(batch)) == 0
    assert (
        len(
            Selection(Selected(FUNCTION, sources=RECORD_FUNCTIONS | {EventSource.MODULE})).view(
                batch
            )
        )
        == 1
    )


def test_extras_that_were_not_asked_for_are_left_out() -> None:
    thread = OneThread()
    thread.begin(
        shapes="[[2]]", dtypes='["float32"]', concrete_inputs='[""]', flops=7, stack="a.py(1): f"
    )
    thread.end()
    thread.point(RowKind.MEMORY, nbytes=64, device="cpu")
    batch = thread.drain()
    (bare,) = Selection(Selected()).view(batch).events()
    assert (bare.shapes, bare.dtypes, bare.concrete_inputs, bare.flops, bare.stack) == (
        "",
        "",
        "",
        0,
        "",
    )
    everything = Extra.SHAPES | Extra.FLOPS | Extra.STACK | Extra.MEMORY
    full, memory = Selection(Selected(extras=everything)).view(batch).events()
    assert (full.shapes, full.dtypes, full.flops, full.stack) == (
        "[[2]]",
        '["float32"]',
        7,
        "a.py(1): f",
    )
    assert full.concrete_inputs == '[""]'
    assert (memory.nbytes, memory.device) == (64, "cpu")


def test_a_profiler_run_sees_its_own_rows_and_marks_alone() -> None:
    thread = OneThread()
    own = thread.point(RowKind.RANGE, profiler=1)
    other = thread.point(RowKind.RANGE, profiler=2)
    mark = thread.point(RowKind.MARK, profiler=1)
    free = thread.point(RowKind.MARK)
    batch = thread.drain()
    assert list(tree(list(Selection(Selected(profiler=1)).view(batch).events()))) == [own, mark]
    assert list(tree(list(Selection(Selected()).view(batch).events()))) == [own, other, free]


@given(data=st.data())
def test_a_capture_sees_the_rows_of_the_sources_that_it_asks_for(data: st.DataObject) -> None:
    thread = OneThread()
    rows = data.draw(
        st.lists(st.tuples(st.sampled_from(RecordScope), st.sampled_from(EventSource)), max_size=20)
    )
    for scope, source in rows:
        thread.begin(scope, source=source)
        thread.end()
    selected = Selected(
        data.draw(st.integers(0, ALL_SCOPES_MASK)),
        sources=data.draw(st.frozensets(st.sampled_from(EventSource))),
    )
    seen = [
        (event.scope, event.source) for event in Selection(selected).view(thread.drain()).events()
    ]
    assert seen == [(scope, source) for scope, source in rows if selected.takes(scope, source)]
