"""Producers' rows in the tree, whatever was drained between a range and what lies in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import MAIN_THREAD, STREAM, context, make_batch
from otel_recfn.batches import placement
from otel_recfn.batches.placement import Placement
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id

pytestmark = pytest.mark.one_python

WORKED_OUT = ("parent", "root", "context")
THREAD, TRACK = MAIN_THREAD.number, STREAM.number


class Forest:
    """Ranges of a thread and of a track, each in one that began before it: what every row's root and context has to be."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.open: list[int] = []

    def begin(self, above: int) -> None:
        """A range of the thread: ``above`` chooses what it lies in, or nothing."""
        event_id = make_event_id(THREAD, len(self.rows) + 1)
        self._put(event_id, {"thread": MAIN_THREAD}, above)
        self.open.append(event_id)

    def drained(self, end: int) -> Batch:
        """The next drain: the last ``end`` of the open ranges have ended."""
        ended = [self.open.pop() for _ in range(min(end, len(self.open)))]
        rows = [self.rows[event_id] for event_id in (*ended, *self.open)]
        batch = make_batch(rows)
        object.__setattr__(batch, "closed", len(ended))
        return batch

    def kernel(self, above: int) -> dict[str, Any]:
        """A row of the track with no root."""
        event_id = make_event_id(TRACK, len(self.rows) + 1)
        self._put(event_id, {"thread": STREAM}, above)
        row = self.rows[event_id]
        return {"event_id": event_id, "thread": STREAM, "parent": row["parent"], "root": 0}

    def _put(self, event_id: int, row: dict[str, Any], above: int) -> None:
        parents = [0, *self.rows]
        parent = parents[above % len(parents)]
        of_its_own = context(9, event_id) if event_id >> 40 == THREAD else context(0, 0, 0)
        inherited = (self.rows[parent]["root"], self.rows[parent]["context"]) if parent else (event_id, of_its_own)
        self.rows[event_id] = row | {"event_id": event_id, "parent": parent, "root": inherited[0], "context": inherited[1]}


places = st.integers(0, 1000)
some = st.lists(places, max_size=4)
rounds = st.lists(st.tuples(some, st.integers(0, 4), st.lists(some, max_size=3)))


@given(rounds, st.booleans())
def test_each_row_has_the_root_and_context_of_what_it_lies_in(steps: list[Any], reversed_rows: bool) -> None:
    forest, stage = Forest(), Placement()
    for begun, ended, batches in steps:
        for above in begun:
            forest.begin(above)
        stage.note(forest.drained(ended))
        for kernels in batches:
            rows = [forest.kernel(above) for above in kernels]
            placed = stage.placed(make_batch(rows[::-1] if reversed_rows else rows))
            for event in placed.events():
                expected = forest.rows[event.event_id]
                assert {name: getattr(event, name) for name in WORKED_OUT} == {name: expected[name] for name in WORKED_OUT}
            assert [opened.event_id for opened in placed.opened] == [e.event_id for e in placed.events() if not e.parent]


def test_contexts_of_forgotten_ranges_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_CONTEXTS", 16)
    stage = Placement(8)
    for number in range(1, 100):
        event_id = make_event_id(THREAD, number)
        stage.note(make_batch([{"event_id": event_id, "context": context(1, number)}] * 1))
        kernel = {"event_id": make_event_id(TRACK, number), "thread": STREAM, "parent": event_id, "root": 0}
        (event,) = stage.placed(make_batch([kernel])).events()
        assert (event.root, event.context) == (event_id, context(1, number))
    assert len(stage._contexts.values) <= 17
