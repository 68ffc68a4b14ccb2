"""Whatever is dropped, no row that is kept loses its parent: it lies in the nearest ancestor that is kept too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches import gaps, remembered
from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, make_event_id

pytestmark = pytest.mark.one_python

THREADS = (MAIN_THREAD, WORKER_THREAD)
BEGIN, END, PASS, DROP = range(4)


def passed(gaps: Gaps, batch: Batch) -> Batch:
    """A batch that is handed on."""
    out = gaps.mended(batch)
    gaps.note(out)
    return out


def reduced(gaps: Gaps, batch: Batch) -> Batch:
    """What is handed on of a batch that is dropped."""
    out = gaps.kept_of(batch)
    gaps.note(out)
    return out


class Stream:
    """Ranges whose parent is any earlier one, open or ended, in batches of which some are dropped."""

    def __init__(self, most_remembered: int = 1 << 17) -> None:
        self.gaps = Gaps(most_remembered)
        self.begun: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self.sent: dict[int, int] = {}

    def step(self, what: int, number: int, thread: int) -> None:
        if what == BEGIN:
            parent = self.begun[-1 - number % len(self.begun)]["event_id"] if self.begun and number else 0
            event_id = make_event_id(THREADS[thread].number, len(self.begun) + 1)
            row = {"event_id": event_id, "thread": THREADS[thread], "parent": parent, "start_ns": BASE_NS + len(self.begun)}
            self.begun.append(row)
            self.open.append(row)
        elif what == END and self.open:
            self.closed.append(self.open.pop(-1 - number % len(self.open)))
        elif what in (PASS, DROP):
            self.send(make_batch(self.closed), drop=what == DROP)
            self.closed = []

    def send(self, batch: Batch, *, drop: bool) -> None:
        out = reduced(self.gaps, batch) if drop else passed(self.gaps, batch)
        if not drop:
            assert out.event_id.tolist() == batch.event_id.tolist()
        self.sent.update(zip(out.event_id.tolist(), out.parent.tolist(), strict=True))

    def end(self) -> None:
        self.closed.extend(reversed(self.open))
        self.open = []
        self.step(PASS, 0, 0)

    def ancestors(self, event_id: int) -> list[int]:
        """0 is the last."""
        parents = {row["event_id"]: row["parent"] for row in self.begun}
        found = [parents[event_id]]
        while found[-1]:
            found.append(parents[found[-1]])
        return found

    def expected(self, event_id: int) -> int:
        """The nearest ancestor that was sent."""
        parents = {row["event_id"]: row["parent"] for row in self.begun}
        above = parents[event_id]
        while above and above not in self.sent:
            above = parents[above]
        return above


STEPS = st.lists(st.tuples(st.sampled_from((BEGIN, BEGIN, BEGIN, END, END, PASS, DROP)), st.integers(0, 9), st.integers(0, 1)))


@given(STEPS)
def test_every_row_lies_in_the_nearest_ancestor_that_was_handed_on(steps: list[tuple[int, int, int]]) -> None:
    stream = Stream()
    for step in steps:
        stream.step(*step)
    stream.end()
    assert stream.sent == {event_id: stream.expected(event_id) for event_id in stream.sent}


OF_A_FORGOTTEN_ROOT = [(BEGIN, 0, 0)] * 2 + [(END, 0, 0)] * 2 + [(DROP, 0, 0)] * 2 + [(BEGIN, 1, 0), (BEGIN, 0, 0), (END, 1, 0)]
"""Two rows whose parent is an outermost range that was dropped and forgotten, in two batches."""


@example(steps=[*OF_A_FORGOTTEN_ROOT, (PASS, 0, 0), (BEGIN, 3, 0)], most=1)
@settings(deadline=None)
@given(STEPS, st.integers(1, 4))
def test_where_nearly_nothing_is_remembered_each_row_lies_in_an_ancestor_that_was_handed_on(
    steps: list[tuple[int, int, int]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "SMALL_CHUNK", 0)
        patch.setattr(gaps, "MAX_OWED", most)
        stream = Stream(most_remembered=most)
        for step in steps:
            stream.step(*step)
        stream.end()
    for event_id, parent in stream.sent.items():
        assert parent == 0 or parent in stream.sent
        assert parent in stream.ancestors(event_id)


def test_without_a_gap_a_batch_is_handed_on_as_it_is() -> None:
    batch = make_batch([{"event_id": 2, "parent": 1}])
    assert passed(Gaps(), batch) is batch


def test_of_a_dropped_batch_only_awaited_parents_are_kept_with_tables_of_their_own() -> None:
    found = Gaps()
    passed(found, make_batch([{"event_id": 3, "parent": 2}]))
    rest = reduced(
        found,
        make_batch(
            [{"event_id": number, "name": f"leaf {number}"} for number in range(10, 1000)]
            + [{"event_id": 2, "parent": 1, "name": "awaited"}]
        ),
    )
    assert [(row.event_id, row.name, row.parent) for row in rest.events()] == [(2, "awaited", 1)]
    assert list(rest.names) == ["", "awaited"]
    assert len(reduced(found, make_batch([{"event_id": 1}]))) == 1
    assert len(reduced(found, make_batch([{"event_id": 4}]))) == 0


def test_a_range_that_the_program_saw_as_a_span_is_kept_of_a_dropped_batch() -> None:
    rest = reduced(Gaps(), make_batch([{"event_id": 1, "flags": EventFlag.SHOWN}, {"event_id": 2}]))
    assert rest.event_id.tolist() == [1]


def test_what_is_remembered_is_bounded() -> None:
    found = Gaps(most_remembered=100)
    for number in range(50):
        first = 1 + number * 1000
        passed(found, make_batch([{"event_id": first + row, "parent": 10**9 + first + row} for row in range(500)]))
        reduced(found, make_batch([{"event_id": first + 500 + row, "parent": 1} for row in range(500)]))
    assert len(found._owed) <= gaps.MAX_OWED
    assert sum(len(chunk[0]) for chunk in found._dropped.chunks) <= 1000
