"""The program's spans in the Chrome trace: slices above the ranges that ran in them, which nest
whatever the threads do.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch, open_for_long
from helpers.trace_files import events_in, read_trace
from otel_recfn.model.batch import ProgramSpan
from otel_recfn.model.columns import NO_CONTEXT, SpanContextRef, Track
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.sinks.chrome.heard_spans import SpanSlice
from otel_recfn.sinks.chrome.span_slices import SpanSlices
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = pytest.mark.one_python

Interval = tuple[int, int]


class Span(SimpleNamespace):
    """Which one may have a weak reference to."""


def span(
    name: str,
    start: int | None = None,
    end: int | None = None,
    parent: SpanContextRef | None = None,
) -> Any:
    """As the SDK has them."""
    times = [None if time is None else BASE_NS + time for time in (start, end)]
    return Span(name=name, start_time=times[0], end_time=times[1], parent=parent)


def row(
    number: int, start: int, end: int, ran_in: SpanContextRef = NO_CONTEXT, **more: Any
) -> dict[str, Any]:
    event_id = make_event_id(more.get("thread", MAIN_THREAD).number, number)
    return {
        "event_id": event_id,
        "start_ns": BASE_NS + start,
        "end_ns": BASE_NS + end,
        "context": ran_in,
        **more,
    }


def slices_of(spans: dict[SpanContextRef, Any], *batches: list[dict[str, Any]]) -> list[SpanSlice]:
    """Those that are over, then those that aren't."""
    known = {ref[:2]: found for ref, found in spans.items()}
    state = SpanSlices(lambda *key: known.get(key))
    found = []
    for rows in batches:
        state, over = state.with_batch(make_batch(rows))
        found += over
    return found + state.open_slices()


def slice_fields(slices: list[SpanSlice]) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.track.number, one.start_ns - BASE_NS, one.end_ns - BASE_NS) for one in slices
    ]


REQUEST = context(5, 6)
CHILD = context(5, 7)
OTHER = context(8, 9)
SPANS = {REQUEST: span("request"), OTHER: span("other")}


def test_a_slice_lasts_from_its_first_range_to_its_last_and_a_nanosecond_longer() -> None:
    rows = [row(1, 0, 10), row(2, 30, 40, REQUEST), row(3, 50, 60, REQUEST), row(4, 90, 99)]
    assert slice_fields(slices_of(SPANS, rows)) == [("request", 1, 30, 61)]
    assert slice_fields(slices_of(SPANS, *[[one] for one in rows])) == [("request", 1, 30, 61)]


def test_no_slice_is_longer_where_something_else_is_there() -> None:
    rows = [row(1, 10, 20, REQUEST), row(2, 20, 30, OTHER), row(3, 30, 40)]
    assert slice_fields(slices_of(SPANS, rows)) == [("request", 1, 10, 20), ("other", 1, 20, 30)]
    inside = [row(2, 10, 20, OTHER), row(1, 0, 20, REQUEST)]
    assert slice_fields(slices_of(SPANS, inside)) == [("other", 1, 10, 20), ("request", 1, 0, 21)]


def test_a_span_nests_in_its_parent_range_that_ends_in_a_later_batch() -> None:
    """The program sees the range's span as its current one: that is the parent of a span which
    it opens there.
    """
    spans = {**SPANS, CHILD: span("child", parent=context(5, 1000))}
    batches = [[row(2, 22, 24, REQUEST)], [row(3, 30, 40, CHILD)], [row(1, 20, 60, REQUEST)]]
    assert slice_fields(slices_of(spans, *batches)) == [
        ("child", 1, 30, 41),
        ("request", 1, 20, 61),
    ]
    known = {**SPANS, CHILD: span("child", parent=REQUEST)}
    assert slice_fields(slices_of(known, [row(1, 30, 40, CHILD)])) == [
        ("request", 1, 30, 42),
        ("child", 1, 30, 41),
    ]
    over = {**spans, REQUEST: span("request", end=29)}
    assert slice_fields(slices_of(over, *batches[:2])) == [
        ("request", 1, 22, 25),
        ("child", 1, 30, 41),
    ]


def test_each_thread_has_a_slice_of_a_span() -> None:
    worker = row(1, 50, 60, REQUEST, thread=WORKER_THREAD)
    assert slice_fields(slices_of(SPANS, [row(1, 10, 20, REQUEST), worker])) == [
        ("request", 1, 10, 21),
        ("request", 2, 50, 61),
    ]


def test_a_stretch_that_may_lie_across_an_open_range_is_asynchronous(path: Path) -> None:
    writer = TraceWriter(path)
    writer.write(make_batch([row(1, 0, 10, REQUEST), row(3, 30, 40, REQUEST)]))
    writer.write(make_batch([row(2, 20, 60, OTHER)]))
    writer.close()
    found = [
        (event["ph"], event["args"]["span_id"])
        for event in events_in(path, "bX")
        if "span_id" in event["args"]
    ]
    assert found == [("b", f"{6:016x}"), ("X", f"{9:016x}")]


def test_the_file_says_which_trace_and_span_they_are(path: Path) -> None:
    writer = TraceWriter(path)
    writer.write(make_batch([row(1, 0, 10, REQUEST)]))
    writer.close()
    first = next(event for event in events_in(path, "X") if "span_id" in event["args"])
    assert (first["name"], first["cat"]) == (f"span {6:016x}", "user_annotation")
    assert first["args"] == {"trace_id": f"{5:032x}", "span_id": f"{6:016x}"}


def test_what_is_not_over_stands_in_the_file_and_is_not_there_twice(path: Path) -> None:
    writer = TraceWriter(path)
    for number in range(1, 4):
        writer.write(make_batch([row(number, 10 * number, 10 * number + 5, REQUEST)]))
        [slice_] = [event for event in events_in(path, "X") if "span_id" in event["args"]]
        assert slice_["dur"] * 1000 == 10 * number - 4
    writer.write(open_for_long(make_batch([row(4, 90, 99, REQUEST, flags=EventFlag.PARTIAL)])))
    [slice_] = [event for event in events_in(path, "X") if "span_id" in event["args"]]
    assert slice_["dur"] * 1000 == 90
    writer.close()


def heard(
    name: str,
    start: int,
    end: int | None,
    span_id: int = 6,
    nests: bool = True,
    thread: Track = MAIN_THREAD,
) -> ProgramSpan:
    """A span that has begun, or has ended, too."""
    end_ns = 0 if end is None else BASE_NS + end
    return ProgramSpan(
        5, span_id, 0, name, thread, BASE_NS + start, end_ns, nests and end is not None
    )


def test_a_span_whose_begin_is_heard_of_is_one_slice_in_place_of_stretches() -> None:
    begun = replace(make_batch([row(1, 10, 20, OTHER)]), spans=[heard("request", 5, None)])
    ended = replace(make_batch([row(2, 30, 40, REQUEST)]), spans=[heard("GET /", 5, 60)])
    state, over = SpanSlices(lambda *key: SPANS.get(context(*key))).with_batch(begun)
    assert over == []
    assert slice_fields(state.open_slices()) == [("request", 1, 5, 20)]
    assert [one.nests for one in state.open_slices()] == [False]
    state, over = state.with_batch(ended)
    assert slice_fields(over) == [("GET /", 1, 5, 60)]
    assert [one.nests for one in over] == [True]
    _, over = state.with_batch(make_batch([row(3, 70, 80, OTHER)]))
    assert [*over, *state.open_slices()] == []


def test_a_stretch_ends_when_a_span_is_heard_to_begin_in_its_thread() -> None:
    state, _ = SpanSlices(lambda *key: SPANS.get(context(*key))).with_batch(
        make_batch([row(1, 10, 20, OTHER)])
    )
    state, over = state.with_batch(
        replace(make_batch([row(2, 40, 50, OTHER)]), spans=[heard("request", 30, None)])
    )
    assert slice_fields(over) == [("other", 1, 10, 21)]
    worker = row(1, 50, 60, OTHER, thread=WORKER_THREAD)
    state, over = state.with_batch(make_batch([row(3, 60, 70, OTHER), worker]))
    assert slice_fields([*over, *state.open_slices()]) == [
        ("request", 1, 30, 70),
        ("other", 2, 50, 61),
    ]


class Thread:
    """Tasks that take turns on one thread, each with ranges and spans of its own."""

    def __init__(self) -> None:
        self.now = self.count = 0
        # [task, number, start, context, is_crossed], in the order of begins.
        self.open: list[list[Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.current: dict[int, list[SpanContextRef]] = {}
        self.spans: dict[SpanContextRef, Any] = {}

    def act(self, action: str, task: int) -> None:
        self.now += 1 + self.count % 2
        getattr(self, action)(task)

    def begin(self, task: int) -> None:
        self.count += 1
        ran_in = self.current.get(task, [NO_CONTEXT])[-1]
        self.open.append([task, self.count, self.now, ran_in, False])

    def end(self, task: int) -> None:
        own = [one for one in self.open if one[0] == task]
        if own:
            at = self.open.index(own[-1])
            is_crossing = at < len(self.open) - 1
            _, number, start, ran_in, _ = self.open.pop(at)
            self.rows.append(
                row(
                    number,
                    start,
                    self.now,
                    ran_in,
                    flags=EventFlag.CROSSING if is_crossing else EventFlag.NONE,
                )
            )

    def enter(self, task: int) -> None:
        stack = self.current.setdefault(task, [NO_CONTEXT])
        trace_id = stack[-1].trace_id or task + 1
        stack.append(context(trace_id, len(self.spans) + 1))
        self.spans[stack[-1]] = span(
            f"span {len(self.spans)}", self.now - 1, parent=stack[-2] if stack[-2].span_id else None
        )

    def leave(self, task: int) -> None:
        stack = self.current.get(task, [])
        if len(stack) > 1:
            self.spans[stack.pop()].end_time = BASE_NS + self.now + 1


ACTIONS = st.tuples(
    st.sampled_from(["begin", "end", "begin", "end", "enter", "leave"]), st.integers(0, 2)
)


CROSSED_FIRST = [
    ("begin", 1),
    ("begin", 0),
    ("end", 1),
    ("enter", 1),
    ("begin", 0),
    ("begin", 1),
    ("end", 1),
    ("begin", 0),
]
"""The outermost range is over, and did not nest; what began in it is open."""


@given(st.lists(ACTIONS, max_size=60), st.integers(1, 9), st.booleans())
@example(CROSSED_FIRST, 1, False)
@example([*CROSSED_FIRST, ("end", 0), ("enter", 1), ("begin", 1), ("end", 1)], 2, False)
def test_slices_always_nest_and_cover_what_ran_in_their_spans(
    actions: list[tuple[str, int]], at_once: int, parents_known: bool
) -> None:
    thread = Thread()
    for action, task in actions:
        thread.act(action, task)
    for task in [one[0] for one in reversed(thread.open)]:
        thread.act("end", task)
    if not parents_known:
        for found in thread.spans.values():
            found.parent = None
    rows = thread.rows
    found = slices_of(
        thread.spans, *[rows[at : at + at_once] for at in range(0, len(rows), at_once)]
    )
    ranges = [one for one in rows if not one["flags"]]
    among = [(one.start_ns, one.end_ns) for one in found if one.nests]
    assert_nest(among + [(one["start_ns"], one["end_ns"]) for one in ranges])
    for one in [one for one in ranges if one["context"].span_id]:
        covering = [each for each in found if each.key == one["context"][:2]]
        assert any(
            each.start_ns <= one["start_ns"] and one["end_ns"] <= each.end_ns for each in covering
        )


def assert_nest(intervals: list[Interval]) -> None:
    open_ends: list[int] = []
    for start, minus_end in sorted((start, -end) for start, end in intervals):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or -minus_end <= open_ends[-1], (start - BASE_NS, -minus_end - BASE_NS)
        open_ends.append(-minus_end)


def test_times_are_exact(path: Path) -> None:
    writer = TraceWriter(path)
    writer.write(make_batch([row(1, 1, 12, REQUEST)]))
    writer.close()
    times = {(event["ts"], event["dur"]) for event in events_in(path, "X")}
    start = (BASE_NS + 1 - read_trace(path)["baseTimeNanoseconds"]) / Decimal(1000)
    assert times == {(start, Decimal("0.011")), (start, Decimal("0.012"))}
