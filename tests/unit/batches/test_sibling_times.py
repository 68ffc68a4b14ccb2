"""When spans of sums begin and end: one after another in the span around them, beside ranges that
are kept where there is room. So what a backend reckons as a span's own time is what it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fold_programs import SPAN, Row, batch_of, decided, nested, threads
from hypothesis import given
from hypothesis import strategies as st

from helpers.example_counts import examples
from otel_recfn.batches.stage import Decided
from otel_recfn.model.events import EventFlag, RecordScope, make_event_id

pytestmark = pytest.mark.one_python

some = examples(100)
budgets = st.integers(1, 12)
Stretch = tuple[int, int]


def folded(rows: Sequence[Row], budget: int, unit_ns: int) -> Decided:
    return decided([batch_of(rows, RecordScope.USER_SCOPE)], budget, duration_ns=unit_ns)


def took(rows: Sequence[Row]) -> int:
    return max(row.start_ns + row.duration_ns for row in rows)


def slowed(rows: Sequence[Row]) -> list[Row]:
    """The same with times of microseconds, as a twelfth of few nanoseconds is none."""
    return [
        replace(row, start_ns=1000 * row.start_ns, duration_ns=1000 * row.duration_ns)
        for row in rows
    ]


def siblings(one: Decided) -> list[list[Any]]:
    """The sums of each thread in each span, in the order of their begins."""
    found = defaultdict[tuple[int, int], list[Any]](list)
    for each in one.summaries:
        found[int(each["parent_id"]), int(each["thread"])].append(each)
    for group in found.values():
        group.sort(key=lambda each: (each["start_ns"], each["end_ns"]))
    return list(found.values())


def stretches(one: Decided) -> dict[int, Stretch]:
    """From when to when each span goes, by its id."""
    batch = one.plan.batch
    times = zip(batch.start_ns.tolist(), batch.end_ns.tolist(), strict=True)
    found = dict(zip(one.plan.span_id.tolist(), times, strict=True))
    for span_id, *sum_times in one.summaries[["span_id", "start_ns", "end_ns"]].tolist():
        found[span_id] = (sum_times[0], sum_times[1])
    return found


@some
@given(rows=nested().filter(bool) | threads().filter(bool), budget=budgets)
def test_sums_of_a_thread_lie_one_after_another_and_are_no_longer_than_their_ranges(
    rows: list[Row], budget: int
) -> None:
    mine = slowed([row for row in rows if row.unit == rows[0].unit])
    mine = [replace(row, unit=0) for row in mine]
    one = folded(mine, budget, took(mine))
    for group in siblings(one):
        assert all(before["end_ns"] <= each["start_ns"] for before, each in pairwise(group))
        for each in group:
            assert 0 <= each["end_ns"] - each["start_ns"] <= max(0, each["total_ns"])


@some
@given(rows=nested().filter(bool), budget=budgets)
def test_sums_lie_in_the_span_around_them(rows: list[Row], budget: int) -> None:
    rows = slowed(rows)
    one = folded(rows, budget, took(rows))
    spans = {**stretches(one), SPAN: (0, took(rows))}
    for group in siblings(one):
        start_ns, end_ns = spans[int(group[0]["parent_id"])]
        assert all(start_ns <= each["start_ns"] <= each["end_ns"] <= end_ns for each in group)


@some
@given(rows=nested().filter(bool), budget=budgets)
def test_sums_with_no_range_beside_them_are_as_long_as_their_ranges(
    rows: list[Row], budget: int
) -> None:
    rows = slowed(rows)
    one = folded(rows, budget, took(rows))
    have_children = set(one.plan.parent_id.tolist())
    # What lies in a sum that had no room has none either.
    cut = {
        span_id
        for span_id, start_ns, end_ns, total_ns in one.summaries[
            ["span_id", "start_ns", "end_ns", "total_ns"]
        ].tolist()
        if end_ns - start_ns < total_ns
    }
    for group in siblings(one):
        if int(group[0]["parent_id"]) not in have_children | cut:
            lengths = [int(each["end_ns"] - each["start_ns"]) for each in group]
            assert lengths == [int(each["total_ns"]) for each in group]


@some
@given(rows=nested().filter(bool), budget=budgets)
def test_sums_overlap_ranges_beside_them_for_a_twelfth_of_the_unit_at_most(
    rows: list[Row], budget: int
) -> None:
    rows = slowed(rows)
    one = folded(rows, budget, took(rows))
    spans = stretches(one)
    beside = defaultdict[int, list[Stretch]](list)
    for span_id, parent_id in zip(
        one.plan.span_id.tolist(), one.plan.parent_id.tolist(), strict=True
    ):
        beside[parent_id].append(spans[span_id])
    overlapped = sum(
        max(0, min(end, each["end_ns"]) - max(start, each["start_ns"]))
        for each in one.summaries
        for start, end in beside[int(each["parent_id"])]
    )
    assert overlapped <= took(rows) // 12


# --- Examples


def ran(*ranges: tuple[int, int, int], flags: int = 0, first: int = 1) -> list[Row]:
    """Ranges directly in the unit, by name, begin and duration in microseconds."""
    return [
        Row(make_event_id(1, number), 0, name, 1000 * start, 1000 * duration, flags)
        for number, (name, start, duration) in enumerate(ranges, first)
    ]


def sums(one: Decided) -> dict[str, Stretch]:
    """From when to when the sum of each name goes, in microseconds."""
    return {
        one.names[name]: (start_ns // 1000, end_ns // 1000)
        for name, start_ns, end_ns in one.summaries[["name", "start_ns", "end_ns"]].tolist()
    }


def test_a_sum_begins_where_its_first_range_did_if_the_others_leave_room() -> None:
    """Five calls each of two names, one after the other: 9 of 0-50, 10 of 50-100."""
    rows = ran(*[(9, 10 * number, 10) for number in range(5)])
    rows += ran(*[(10, 50 + 10 * number, 10) for number in range(5)], first=6)
    assert sums(folded(rows, 3, 100_000)) == {"name 9": (0, 50), "name 10": (50, 100)}


def test_sums_of_calls_in_turns_lie_one_after_another() -> None:
    rows = ran(*[(9 + number % 2, 10 * number, 10) for number in range(10)])
    assert sums(folded(rows, 3, 100_000)) == {"name 9": (0, 50), "name 10": (50, 100)}


def test_the_longest_is_cut_where_all_are_too_long() -> None:
    """Three calls of 10 us, and four at once of 100 us each: 430 us in a unit of 130."""
    rows = ran(*[(9, 10 * number, 10) for number in range(3)])
    rows += ran(*[(10, 30, 100)] * 4, flags=int(EventFlag.ASYNC), first=4)
    assert sums(folded(rows, 3, 130_000)) == {"name 9": (0, 30), "name 10": (30, 130)}
