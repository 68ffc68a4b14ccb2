"""Views are forests, whatever range is whose parent, and whenever captures begin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.selection import Selected, Selection
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, RecordScope, make_event_id

pytestmark = pytest.mark.one_python

SCOPES = (RecordScope.FUNCTION, RecordScope.BACKWARD_FUNCTION, RecordScope.USER_SCOPE)
THREADS = (MAIN_THREAD, WORKER_THREAD)


@dataclass
class View:
    """A capture, and what it was given."""

    mask: int
    began: int
    """How many ranges had begun before it."""
    selection: Selection
    batches: list[Batch] = field(default_factory=list)

    def parents(self) -> dict[int, int]:
        return {event.event_id: event.parent for batch in self.batches for event in batch.events()}


class Recording:
    """Ranges, drained as a session does it for several captures.

    Their parents are earlier ones: any, or undrained ones.
    """

    def __init__(self, mask: int, any_parent: bool) -> None:
        self.any_parent = any_parent
        self.rows: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self.untold: list[dict[str, Any]] = []
        self.views = [View(mask, 0, Selection(Selected(scopes=mask)))]

    def begin(self, scope: int, thread: int, parent: int, *, in_span: bool = False) -> None:
        wanted = 0
        for view in self.views:
            wanted |= view.mask
        if not wanted >> SCOPES[scope] & 1:
            return
        rows = self.rows if self.any_parent else [*self.open, *self.closed]
        around = rows[parent % len(rows)] if rows and parent else None
        event_id = make_event_id(THREADS[thread].number, len(self.rows) + 1)
        parent_id, root = (around["event_id"], around["root"]) if around else (0, event_id)
        root = event_id if in_span else root
        row = {
            "event_id": event_id,
            "scope": SCOPES[scope],
            "thread": THREADS[thread],
            "parent": parent_id,
            "root": root,
        }
        self.rows.append({**row, "start_ns": BASE_NS + len(self.rows)})
        self.open.append(self.rows[-1])
        if root == event_id:
            self.untold.append(
                {
                    "event_id": event_id,
                    "thread": THREADS[thread],
                    "start_ns": BASE_NS + len(self.rows),
                }
            )

    def end(self, which: int) -> None:
        if self.open:
            self.closed.append(self.open.pop(which % len(self.open)))

    def drain(self) -> None:
        batch = self._drain()
        for view in self.views:
            alone = len(self.views) == 1
            view.batches.append(_without_copies(batch) if alone else view.selection.view(batch))

    def join(self, mask: int) -> None:
        batch = self._drain()
        for view in self.views:
            if len(self.views) == 1:
                view.batches.append(_without_copies(batch))
                view.selection.continue_after(batch)
            else:
                view.batches.append(view.selection.view(batch))
        self.views.append(View(mask, len(self.rows), Selection(Selected(scopes=mask))))
        self.views[-1].selection.start_after(batch)

    def finish(self) -> None:
        while self.open:
            self.end(-1)
        self.drain()

    def _drain(self) -> Batch:
        copies = [{**row, "flags": EventFlag.PARTIAL} for row in reversed(self.open)]
        batch = make_batch([*self.closed, *copies], self.untold)
        closed = len(self.closed)
        self.closed = []
        self.untold = []
        return replace(batch, closed=closed)

    def expected(self, view: View) -> dict[int, int]:
        number = {row["event_id"]: index for index, row in enumerate(self.rows)}

        def is_seen(event_id: int) -> bool:
            return number[event_id] >= view.began and bool(
                view.mask >> self.rows[number[event_id]]["scope"] & 1
            )

        def nearest(event_id: int) -> int:
            return (
                event_id
                if not event_id or is_seen(event_id)
                else nearest(self.rows[number[event_id]]["parent"])
            )

        return {
            row["event_id"]: nearest(row["parent"]) for row in self.rows if is_seen(row["event_id"])
        }

    def with_spans_between(self, view: View) -> set[int]:
        """The ranges that a span is between, and what is around them in the view."""
        parents = view.parents()
        found = set[int]()
        by_id = {row["event_id"]: row for row in self.rows}
        for event_id, parent in parents.items():
            each = by_id[event_id]
            while each["root"] != each["event_id"] and each["parent"] != parent:
                each = by_id[each["parent"]]
            found |= {event_id} if each["root"] == each["event_id"] else set()
        return found


def _without_copies(batch: Batch) -> Batch:
    return batch.take(slice(batch.closed), opened=batch.opened)


def check_forest(view: View) -> None:
    roots: dict[int, int] = {}
    announced: list[int] = []
    parents = view.parents()
    for batch in view.batches:
        announced += [each.event_id for each in batch.opened]
        for event in batch.events():
            roots[event.event_id] = event.root
            assert event.root in announced, "a row came before its root was announced"
    assert sum(len(batch) for batch in view.batches) == len(parents), "a range came twice"
    assert len(announced) == len(set(announced)), "a range was announced twice"
    assert set(announced) == {event_id for event_id, root in roots.items() if root == event_id}
    for event_id, parent in parents.items():
        assert not parent or parent in parents, "an orphan"
        assert roots[event_id] in (event_id, roots.get(parent))
        assert parent or roots[event_id] == event_id


masks = st.sampled_from(
    [
        sum(1 << scope for scope in chosen)
        for chosen in (SCOPES, SCOPES[:1], SCOPES[:2], SCOPES[1:], SCOPES[2:])
    ]
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("begin"),
            st.integers(0, 2),
            st.integers(0, 1),
            st.one_of(st.just(0), st.just(-1), st.integers(1, 60)),
        ),
        st.tuples(
            st.sampled_from(["begin", "begin in span"]),
            st.integers(0, 2),
            st.integers(0, 1),
            st.just(-1),
        ),
        st.tuples(st.just("end"), st.integers(-1, 60)),
        st.tuples(st.just("drain")),
        st.tuples(st.just("join"), masks),
    ),
    max_size=80,
)


def record(mask: int, taken: list[tuple[Any, ...]], any_parent: bool = True) -> Recording:
    recording = Recording(mask, any_parent)
    for name, *arguments in taken:
        if name == "begin in span":
            recording.begin(*arguments, in_span=True)
        else:
            getattr(recording, name)(*arguments)
    recording.finish()
    return recording


@given(masks, steps)
def test_a_view_has_the_nearest_seen_ancestor_of_each_range(
    mask: int, taken: list[tuple[Any, ...]]
) -> None:
    recording = record(mask, taken, any_parent=False)
    for view in recording.views:
        assert view.parents() == recording.expected(view)
        check_forest(view)
        in_spans = recording.with_spans_between(view)
        rows = [event for batch in view.batches for event in batch.events()]
        assert {event.event_id for event in rows if event.root == event.event_id} == in_spans


FORGET = [("drain",), *[("begin", 0, 1, 0), ("end", -1), ("drain",)] * 6]


def test_a_range_below_a_hidden_one_that_was_forgotten_is_top_level() -> None:
    hidden = ("begin", 2, 0, 0)
    child = ("begin", 0, 0, 7)
    recording = record(
        1 << SCOPES[0], [("join", 1 << SCOPES[2]), hidden, ("end", -1), *FORGET, child]
    )
    assert recording.rows[-1]["parent"] == recording.rows[0]["event_id"]
    assert recording.views[0].parents()[recording.rows[-1]["event_id"]] == 0


def test_an_open_range_keeps_its_parent_however_long_that_has_ended() -> None:
    recording = record(
        0, [("join", 1 << SCOPES[0]), ("begin", 0, 0, 0), ("begin", 0, 0, -1), ("end", 0), *FORGET]
    )
    outer, inner = (row["event_id"] for row in recording.rows[:2])
    assert recording.views[1].parents()[inner] == outer
    check_forest(recording.views[1])


@given(masks, steps)
def test_a_view_is_a_forest_also_where_ranges_were_forgotten(
    mask: int, taken: list[tuple[Any, ...]]
) -> None:
    recording = record(mask, taken)
    for view in recording.views:
        assert view.parents().keys() == recording.expected(view).keys()
        check_forest(view)
