"""A backward node and the range that autograd runs it in are one span, whatever parts they come
in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.trace import SpanContext

from helpers.batches import BASE_NS, context, make_batch
from otel_recfn.batches import stage as stage_module
from otel_recfn.batches.stage import Decided, Stage
from otel_recfn.model.events import NODES_PREFIX, EventFlag, RecordScope
from otel_recfn.support.span_ids import span_id

pytestmark = pytest.mark.one_python

ABOVE = SpanContext(1, 2, False)
REQUEST = context(1, 2)
MS = 1_000_000
BACKWARD, HOOK, AROUND, NODE, OPERATOR = 1, 2, 3, 4, 5
"""Event ids, in the order in which the ranges begin, but for the hook's."""
Row = dict[str, Any]


def row(event_id: int, name: str, parent: int, start_ms: float, ms: float, **more: Any) -> Row:
    start_ns = BASE_NS + int(start_ms * MS)
    place = {"event_id": event_id, "parent": parent, "root": BACKWARD, "context": REQUEST}
    return {**place, "name": name, "start_ns": start_ns, "end_ns": start_ns + int(ms * MS), **more}


def rows(*, node_flags: int = 0, enclosing_flags: int = 0) -> list[Row]:
    """In the order of their ends: a node that takes a hundredth of the time, a slow hook after
    it.

    With flags.
    """
    numbers = {"sequence_nr": 7, "forward_thread_id": 9}
    backward_times = {"scope": RecordScope.BACKWARD_FUNCTION, "shapes": "[[2,3]]", **numbers}
    return [
        row(OPERATOR, "aten::mul", NODE, 2, 0.5),
        row(NODE, "MulBackward0", AROUND, 2, 1, flags=node_flags, **backward_times),
        row(HOOK, "hook", AROUND, 4, 90),
        row(
            AROUND,
            NODES_PREFIX + "MulBackward0",
            BACKWARD,
            1,
            95,
            flags=enclosing_flags,
            **numbers,
        ),
        row(BACKWARD, "backward", 0, 0, 100),
    ]


def decided(
    batches: Sequence[Sequence[Row]],
    *,
    budget: int = 50,
    max_waiting: int = 1024,
    parts: Sequence[int] = (),
) -> Iterator[Decided]:
    """The parts that the unit is decided in: after some batches, and in the end."""
    stage = Stage(budget, max_waiting)
    for number, batch in enumerate(batches):
        stage.add(make_batch(batch))
        unit = stage.find(ABOVE)
        assert unit is not None
        if number in parts:
            yield stage.decide([(unit, budget)], [ABOVE], is_partial=True)
    yield stage.decide([(unit, budget)], [ABOVE], is_partial=False)


def all_spans(parts: Sequence[Decided]) -> dict[int, Any]:
    """The kept ranges, by their event ids."""
    return {event.event_id: event for part in parts for event in part.plan.batch.events()}


CUTS = [cuts for size in range(5) for cuts in itertools.combinations(range(1, 5), size)]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("max_waiting", [1, 2, 1024])
def test_it_has_the_place_of_the_range_around_and_all_else_of_the_node(
    cuts: tuple[int, ...], max_waiting: int
) -> None:
    edges = [0, *cuts, 5]
    batches = [rows()[first:last] for first, last in itertools.pairwise(edges)]
    (done,) = decided(batches, max_waiting=max_waiting)
    spans = all_spans([done])
    parents = dict(zip(done.plan.event_id.tolist(), done.plan.parent.tolist(), strict=True))
    assert set(spans) == {BACKWARD, AROUND, HOOK, OPERATOR}
    node = spans[AROUND]
    around = row(AROUND, "", BACKWARD, 1, 95)
    assert (node.name, node.scope) == ("MulBackward0", RecordScope.BACKWARD_FUNCTION)
    assert (node.shapes, node.sequence_nr) == ("[[2,3]]", 7)
    assert (node.parent, node.start_ns, node.end_ns) == (
        BACKWARD,
        around["start_ns"],
        around["end_ns"],
    )
    assert parents == {BACKWARD: 0, AROUND: BACKWARD, HOOK: AROUND, OPERATOR: AROUND}
    assert done.sums[["span", "is_whole_unit", "ranges", "duration_ns"]].tolist() == [
        (done.plan.event_id.tolist().index(AROUND), 0, 1, 0),
        (done.plan.event_id.tolist().index(BACKWARD), 1, 1, 0),
    ]
    top = {done.names[name]: count for name, count in done.top[["name", "count"]].tolist()}
    assert top == {"hook": 1, "backward": 1, "MulBackward0": 1}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_it_waits_where_its_unit_is_decided_in_part(after: int) -> None:
    parts = list(decided([rows()[:after], rows()[after:]], parts=[0]))
    spans = all_spans(parts)
    assert (NODE in spans, spans[AROUND].name) == (False, "MulBackward0")
    assert sum(len(part.plan.row) + _folded(part) for part in parts) == 5


def _folded(part: Decided) -> int:
    return int(part.sums["ranges"][part.sums["is_whole_unit"] != 0].sum())


def test_its_row_waits_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that no unit needs are dropped meanwhile."""
    monkeypatch.setattr(stage_module, "ROWS_TO_SPARE", 1)
    short = [[row(100 + number, "aten::add", HOOK, 5, 0)] for number in range(50)]
    (done,) = decided([rows()[:2], *short, rows()[2:]], budget=4, max_waiting=1)
    assert all_spans([done])[AROUND].shapes == "[[2,3]]"


def test_summed_up_they_count_once() -> None:
    many = list[Row]()
    number = itertools.count(10, 10)
    for first in itertools.islice(number, 40):
        start = first / 10
        shifted = [
            {**one, "event_id": first + one["event_id"], "parent": first + one["parent"]}
            for one in rows()[:4]
        ]
        many += [
            {**one, "parent": BACKWARD if one["event_id"] == first + AROUND else one["parent"]}
            for one in shifted
        ]
        for one in many[-4:]:
            length = (one["end_ns"] - one["start_ns"]) // 100
            one["start_ns"] = BASE_NS + int(start * MS) + (one["start_ns"] - BASE_NS) // 100
            one["end_ns"] = one["start_ns"] + length
    (done,) = decided([many, [row(BACKWARD, "backward", 0, 0, 100)]], budget=8)
    counts = {done.names[name]: count for name, count in done.summaries[["name", "count"]].tolist()}
    assert counts["MulBackward0"] == counts["hook"] == 40
    top = {done.names[name]: count for name, count in done.top[["name", "count"]].tolist()}
    assert top["MulBackward0"] == 40
    assert len(done.plan.row) + _folded(done) == len(many) + 1


def three_nodes(enclosing_flags: int = 0) -> list[Row]:
    """Three ranges of 20 ms, each around a node of 10 ms, in one of 100 ms; with flags."""
    nodes = []
    for number in range(3):
        around = AROUND + 10 * number
        start_ms = 30 * number
        scope = {"scope": RecordScope.BACKWARD_FUNCTION}
        nodes += [
            row(around + 1, "MulBackward0", around, start_ms + 1, 10, **scope),
            row(
                around,
                NODES_PREFIX + "MulBackward0",
                BACKWARD,
                start_ms,
                20,
                flags=enclosing_flags,
            ),
        ]
    return [*nodes, row(BACKWARD, "backward", 0, 0, 100)]


def test_a_sum_of_three_nodes_says_that_three_ranges_share_its_span() -> None:
    """Two spans for seven ranges: the outermost one, and one sum of three ranges with a node each.

    So the sum says that three more ranges were folded into it, which took no time of their own, and
    of the unit's seven six have no span of their own.
    """
    (done,) = decided([three_nodes()], budget=2)
    assert [event.name for event in done.plan.batch.events()] == ["backward"]
    (summary,) = done.summaries
    assert (done.names[summary["name"]], summary["count"]) == ("MulBackward0", 3)
    assert summary["total_ns"] == 60 * MS
    kept, in_sum, whole_unit = 0, 1, 1
    assert done.sums[["span", "is_whole_unit", "ranges", "duration_ns"]].tolist() == [
        (kept, 0, 6, 60 * MS),
        (in_sum, 0, 3, 0),
        (kept, whole_unit, 6, 60 * MS),
    ]


def test_a_sum_of_nodes_has_the_scope_of_nodes() -> None:
    (done,) = decided([three_nodes()], budget=2)
    assert done.summaries["scope"].tolist() == [RecordScope.BACKWARD_FUNCTION]


def test_the_longest_range_of_a_unit_stays_a_sum_if_a_node_is_one_with_it() -> None:
    """A node of 0.1 ms, and all that there is in a request of a second: too short for a span, and
    yet the request has one. As a sum it stands for two ranges; a span of the one would lose the
    other.
    """
    stage = Stage(50)
    scope = {"scope": RecordScope.BACKWARD_FUNCTION}
    node = row(NODE, "MulBackward0", AROUND, 1, 0.1, root=AROUND, **scope)
    around = row(AROUND, NODES_PREFIX + "MulBackward0", 0, 1, 0.2, root=AROUND)
    stage.add(make_batch([node, around]))
    (unit,) = stage.units()
    end_ns = BASE_NS + 1000 * MS
    stage.end_span(unit.unit, ended_by_ns=end_ns, start_ns=BASE_NS, end_ns=end_ns, failed=False)
    done = stage.decide([(unit.unit, 50)], [ABOVE], is_partial=False)
    assert len(done.plan.row) == 0
    assert [done.names[name] for name in done.summaries["name"]] == ["MulBackward0"]
    assert (done.summaries["count"].tolist(), _folded(done)) == ([1], 2)


EXPOSED = int(EventFlag.EXPOSED)
ERROR = int(EventFlag.ERROR)
PARTIAL = int(EventFlag.PARTIAL)


def test_where_the_program_saw_the_node_the_span_has_the_id_that_it_saw() -> None:
    (done,) = decided([rows(node_flags=EXPOSED)])
    plan = done.plan
    parents = dict(zip(plan.event_id.tolist(), plan.parent.tolist(), strict=True))
    assert parents == {BACKWARD: 0, NODE: BACKWARD, HOOK: NODE, OPERATOR: NODE}
    assert sorted(all_spans([done])) == [BACKWARD, HOOK, AROUND, OPERATOR]
    place = plan.batch.event_id.tolist().index(AROUND)
    assert plan.span_id[place] == span_id(NODE)


def test_where_the_program_saw_both_there_are_two() -> None:
    (done,) = decided([rows(node_flags=EXPOSED, enclosing_flags=EXPOSED)])
    spans = all_spans([done])
    assert (spans[AROUND].name, spans[NODE].name) == (NODES_PREFIX + "MulBackward0", "MulBackward0")
    assert done.plan.span_id.tolist() == [
        span_id(event_id) for event_id in done.plan.batch.event_id.tolist()
    ]


@pytest.mark.parametrize("flags", [PARTIAL, ERROR])
def test_where_both_are_open_or_failed_they_are_one(flags: int) -> None:
    (done,) = decided([rows(node_flags=flags, enclosing_flags=flags)], budget=2)
    assert [(event.name, int(event.flags)) for event in done.plan.batch.events()] == [
        ("backward", 0),
        ("MulBackward0", flags),
    ]


def test_where_a_hook_failed_the_span_says_so_of_the_range_around() -> None:
    (done,) = decided([rows(enclosing_flags=ERROR)])
    around = all_spans([done])[AROUND]
    assert (around.name, int(around.flags)) == (NODES_PREFIX + "MulBackward0", ERROR)
    assert NODE not in all_spans([done])


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("comes", [True, False])
def test_a_node_in_another_range_is_a_span_of_its_own(count: int, comes: bool) -> None:
    nodes = [
        row(
            10 + number,
            "MulBackward0",
            BACKWARD,
            number / 10,
            0.1,
            scope=RecordScope.BACKWARD_FUNCTION,
        )
        for number in range(count)
    ]
    (done,) = decided(
        [nodes, [row(BACKWARD, "backward", 0, 0, 20)] if comes else [row(5, "other", 0, 0, 20)]],
        budget=300,
    )
    assert len(done.plan.row) == count + 1
    expected = {0, BACKWARD} if comes else {0}
    assert set(done.plan.parent.tolist()) == expected


def test_names_can_be_forgotten_while_a_node_waits() -> None:
    stage = Stage(50)
    stage.add(make_batch(rows()[:2]))
    unit = stage.find(ABOVE)
    assert unit is not None
    stage.add_nodes()
    first = stage.decide([(unit, 50)], [ABOVE], is_partial=True)
    stage.forget_names()
    stage.add(make_batch(rows()[2:]))
    rest = stage.decide([(unit, 50)], [ABOVE], is_partial=False)
    assert {event.name for event in all_spans([first, rest]).values()} == {
        each["name"] for each in rows()
    }
