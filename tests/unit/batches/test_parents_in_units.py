"""A kept range has its parent whenever that came, and no time counts twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fold_programs import SPAN, Row, batch_of, nested
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

from helpers.batches import context, make_batch
from otel_recfn.batches.stage import Decided, Stage
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, make_event_id

pytestmark = pytest.mark.one_python

ABOVE = SpanContext(1, SPAN, False)
MS = 1_000_000
ASYNC = int(EventFlag.ASYNC)
OUTER, INNER, INNERMOST = [make_event_id(1, number) for number in (1, 2, 3)]
ELSEWHERE = make_event_id(2, 1)


def decide(stage: Stage, budget: int, *, is_partial: bool = False) -> Decided:
    (unit,) = [one.unit for one in stage.units()]
    return stage.decide([(unit, budget)], [ABOVE], is_partial=is_partial)


def parents(decided: Decided) -> dict[int, int]:
    plan = decided.plan
    return dict(zip(plan.batch.event_id.tolist(), plan.parent.tolist(), strict=True))


def unit_sums(decided: Decided) -> Any:
    (sums,) = decided.sums[decided.sums["is_whole_unit"] != 0]
    return sums


@given(rows=nested(flags=(0, ASYNC, int(EventFlag.CROSSING))), draw=st.data())
def test_in_whatever_order_ranges_come_each_is_below_its_parent(rows: list[Row], draw: Any) -> None:
    stage = Stage(len(rows) + 1)
    for row in draw.draw(st.permutations(rows)):
        stage.add(batch_of([replace(row, name=2, duration_ns=row.duration_ns + 1)]))
    if rows:
        assert parents(decide(stage, len(rows))) == {row.event_id: row.parent for row in rows}


def twice(rows: list[Row]) -> list[Row]:
    """Two such trees, so that none of their ranges is alone on its path."""

    def again(row: Row) -> Row:
        parent = row.parent + 100 if row.parent else 0
        return replace(
            row, event_id=row.event_id + 100, parent=parent, start_ns=row.start_ns + 9 * MS
        )

    return [*rows, *map(again, rows)]


@pytest.mark.parametrize("inner", [INNER, ELSEWHERE], ids=["in its thread", "in another thread"])
def test_what_ends_after_the_range_that_it_lies_in_is_folded_into_that(inner: int) -> None:
    stage = Stage(9)
    rows = [
        Row(OUTER, 0, 1, 0, 4 * MS),
        Row(inner, OUTER, 2, MS, 9 * MS),
        Row(INNERMOST, inner, 3, 2 * MS, MS),
    ]
    stage.add(batch_of(twice(rows)))
    sums = unit_sums(decide(stage, 0))
    assert (sums["ranges"], sums["duration_ns"]) == (6, 8 * MS)


def test_asynchronous_ranges_in_each_other_are_no_time_twice() -> None:
    stage = Stage(9)
    rows = [Row(INNER, OUTER, 2, 1, 7 * MS, ASYNC), Row(OUTER, 0, 1, 0, 8 * MS, ASYNC)]
    stage.add(batch_of(twice(rows)))
    sums = unit_sums(decide(stage, 0))
    assert (sums["ranges"], sums["duration_ns"]) == (4, 16 * MS)


def test_a_range_is_below_its_parent_that_was_sent_before() -> None:
    stage = Stage(9)
    stage.add(batch_of([Row(OUTER, 0, 1, 0, 8 * MS)]))
    assert parents(decide(stage, 5, is_partial=True)) == {OUTER: 0}
    stage.add(batch_of([Row(INNER, OUTER, 2, 1, 9 * MS)]))
    assert parents(decide(stage, 5)) == {INNER: OUTER}


def in_a_span(outer_ns: int, inner_ns: int, **columns: Any) -> Batch:
    """A range in a span that lies in another range, and that one, beside two that are too short
    for spans.
    """
    outer = {
        "event_id": OUTER,
        "name": "outer",
        "context": context(1, SPAN),
        "start_ns": 0,
        "end_ns": outer_ns,
    }
    inner = {
        "event_id": INNER,
        "name": "inner",
        "context": context(1, SPAN + 1),
        "start_ns": 0,
        "end_ns": inner_ns,
    }
    short = [
        {**outer, "event_id": INNERMOST + number, "name": "short", "end_ns": 1}
        for number in range(2)
    ]
    return make_batch([{**inner, "parent": OUTER, "root": INNER, **columns}, *short, outer])


@pytest.mark.parametrize(
    ("columns", "own_ns"),
    [
        ({}, 3 * MS),
        ({"flags": EventFlag.ASYNC}, 8 * MS),
        ({"event_id": ELSEWHERE, "root": ELSEWHERE}, 8 * MS),
    ],
    ids=["in its thread", "asynchronous", "in another thread"],
)
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("budget", [0, 5])
def test_time_in_a_span_is_none_of_the_range_around_the_span(
    columns: dict[str, Any], own_ns: int, budget: int, at_once: bool
) -> None:
    stage = Stage(9)
    batch = in_a_span(8 * MS, 5 * MS, **columns)
    for part in [batch] if at_once else [batch.take(slice(1)), batch.take(slice(1, None))]:
        stage.add(part)
    outer = stage.find(ABOVE)
    assert outer is not None
    decided = stage.decide([(outer, budget)], [ABOVE], is_partial=False)
    assert ("outer", 1, own_ns) in [
        (decided.names[name], count, self_ns) for count, self_ns, _, name in decided.top.tolist()
    ]
    (inner,) = [one.unit for one in stage.units()]
    assert parents(
        stage.decide([(inner, 5)], [SpanContext(1, SPAN + 1, False)], is_partial=False)
    ) == {batch.event_id[0]: 0}
