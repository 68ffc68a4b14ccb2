"""What folding promises of every program: each range is counted once and each nanosecond too, a
range that is kept has what it lies in, the longest have spans, and the budget is kept.

The laws look at the rows that went in and the tables that came out. What the numbers mean (a
thousandth, a tenth, twice the others) is in examples that can be checked by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from fold_programs import CALLED, Row, batch_of, decided, nested, threads
from hypothesis import given
from hypothesis import strategies as st

from helpers.example_counts import examples
from otel_recfn.batches.stage import Decided
from otel_recfn.model.events import ORDINAL_BITS, EventFlag, RecordScope, make_event_id

pytestmark = pytest.mark.one_python

budgets = st.integers(0, 12)
some = examples(100)  # rows of a whole program each
few_names = nested(names=3)
"""A span tells three names, so that all are told."""


def folded(
    rows: Sequence[Row],
    budget: int,
    cuts: Sequence[int] = (),
    unit: int = 0,
    duration_ns: int | None = None,
) -> Decided:
    """One unit of a program, whose rows come in these pieces."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    batches = [batch_of(rows[one:end], RecordScope.USER_SCOPE) for one, end in pairwise(edges)]
    length_ns = took(rows) if duration_ns is None else duration_ns
    return decided(batches, budget, unit=unit, duration_ns=length_ns)


def took(rows: Sequence[Row]) -> int:
    return max([row.start_ns + row.duration_ns for row in rows], default=0)


def kept(one: Decided) -> dict[int, int]:
    """The ranges that have a span, and the kept range that each lies in; 0: none."""
    ids = one.plan.batch.event_id.tolist()
    return dict(zip(ids, one.plan.parent.tolist(), strict=True))


def whole_unit(one: Decided) -> Any:
    """The sums of all that was folded; None if nothing was."""
    sums = one.sums[one.sums["is_whole_unit"] != 0]
    return sums[0] if len(sums) else None


def self_times(rows: Sequence[Row]) -> dict[int, int]:
    """By event id, without what lies in it in its thread; an asynchronous range has none."""
    own = {row.event_id: 0 if row.flags & EventFlag.ASYNC else row.duration_ns for row in rows}
    by_id = {row.event_id: row for row in rows}
    for row in rows:
        around = by_id.get(row.parent)
        same_thread = row.parent >> ORDINAL_BITS == row.event_id >> ORDINAL_BITS
        if around and same_thread and not (row.flags | around.flags) & EventFlag.ASYNC:
            own[row.parent] -= row.duration_ns
    return own


class Place(NamedTuple):
    """Where a range was folded."""

    holder: int
    """The nearest range around it that is kept; 0: none."""
    path: tuple[int, ...]
    """The names from there down to its own."""


def place_of(row: Row, by_id: dict[int, Row], have_spans: dict[int, int]) -> Place:
    path = (row.name,)
    above = row.parent
    while above in by_id and above not in have_spans:
        path = (by_id[above].name, *path)
        above = by_id[above].parent
    return Place(above if above in have_spans else 0, path)


def folded_by_place(rows: Sequence[Row], one: Decided) -> dict[Place, list[Row]]:
    by_id = {row.event_id: row for row in rows}
    have_spans = kept(one)
    found: dict[Place, list[Row]] = {}
    for row in rows:
        if row.event_id not in have_spans:
            found.setdefault(place_of(row, by_id, have_spans), []).append(row)
    return found


# --- Nothing is lost, and nothing counted twice


@some
@given(rows=threads(), budget=budgets)
def test_each_range_is_a_span_or_counted_once(rows: list[Row], budget: int) -> None:
    for unit in {row.unit for row in rows}:
        one = folded(rows, budget, unit=unit)
        sums = whole_unit(one)
        count = sums["ranges"] if sums is not None else 0
        assert len(kept(one)) + count == sum(row.unit == unit for row in rows)


@some
@given(rows=few_names.filter(bool), budget=budgets)
def test_each_nanosecond_is_the_time_of_one_range(rows: list[Row], budget: int) -> None:
    """The unit says of each name how often it ran and how long itself, with a span or without."""
    one = folded(rows, budget)
    sums = whole_unit(one)
    if sums is None or not sums["ranges"]:  # each has a span, which says it
        return
    own = self_times(rows)
    expected = dict[str, tuple[int, int]]()
    for row in rows:
        name = str(CALLED.get(row.name, {}).get("name", f"name {row.name}"))
        count, self_ns = expected.get(name, (0, 0))
        expected[name] = count + 1, self_ns + own[row.event_id]
    assert unit_top_names(one) == expected


def unit_top_names(one: Decided) -> dict[str, tuple[int, int]]:
    """The names that took most of a unit, how often they ran and how long themselves."""
    index = int(np.flatnonzero(one.sums["is_whole_unit"])[0])
    first, last = [0, *one.sums["top_end"].tolist()][index : index + 2]
    top = one.top[first:last].tolist()
    return {one.names[name]: (count, self_ns) for count, self_ns, _, name in top}


@some
@given(rows=few_names.filter(bool), budget=budgets)
def test_nothing_worked_for_longer_than_it_ran(rows: list[Row], budget: int) -> None:
    top = folded(rows, budget).top
    assert all(0 <= worked_ns <= self_ns for _, self_ns, worked_ns, _ in top.tolist())


@some
@given(rows=few_names.filter(bool), budget=budgets)
def test_a_span_says_what_was_folded_into_it(rows: list[Row], budget: int) -> None:
    """Those whose nearest kept range it is, and the time of the outermost of them."""
    one = folded(rows, budget)
    ids = one.plan.batch.event_id.tolist()
    counts = Counter[int]()
    times = Counter[int]()
    for place, members in folded_by_place(rows, one).items():
        counts[place.holder] += len(members)
        times[place.holder] += sum(row.duration_ns for row in members if len(place.path) == 1)
    sums_by_holder = {
        ids[each["span"]]: (each["ranges"], each["duration_ns"])
        for each in one.sums
        if not each["is_whole_unit"] and 0 <= each["span"] < len(ids)
    }
    assert sums_by_holder == {
        holder: (counts[holder], times[holder]) for holder in counts if holder
    }
    sums = whole_unit(one)
    if sums is not None:
        assert (sums["ranges"], sums["duration_ns"]) == (counts.total(), times.total())


@some
@given(rows=few_names.filter(bool), budget=budgets)
def test_a_sum_stands_for_all_ranges_of_its_path(rows: list[Row], budget: int) -> None:
    one = folded(rows, budget)
    places = folded_by_place(rows, one)
    places_by_id = {row.event_id: place for place, members in places.items() for row in members}
    assert len({places_by_id[each] for each in one.summaries["first_id"].tolist()}) == len(
        one.summaries
    )
    for each in one.summaries:
        members = places[places_by_id[int(each["first_id"])]]
        times = [row.duration_ns for row in members]
        assert (each["count"], each["total_ns"]) == (len(times), sum(times))
        assert (each["shortest_ns"], each["longest_ns"]) == (min(times), max(times))
        cpu_times = [row.cpu_time_ns for row in members]
        assert each["cpu_time_ns"] == (-1 if -1 in cpu_times else sum(cpu_times))
        first = min(members, key=lambda row: (row.start_ns, row.event_id))
        assert each["first_id"] == first.event_id


@some
@given(rows=threads(), budget=budgets, cuts=st.lists(st.integers(0, 60)))
def test_folding_is_independent_of_batch_boundaries(
    rows: list[Row], budget: int, cuts: list[int]
) -> None:
    for unit in {row.unit for row in rows}:
        same(folded(rows, budget, unit=unit), folded(rows, budget, cuts, unit))


def same(one: Decided, other: Decided) -> None:
    assert kept(one) == kept(other)
    assert list(one.plan.batch.events()) == list(other.plan.batch.events())
    assert one.sums.tolist() == other.sums.tolist()
    name_columns = {"name", "module", "enclosing_module"}
    columns = [each for each in one.summaries.dtype.names or () if each not in name_columns]
    assert one.summaries[columns].tolist() == other.summaries[columns].tolist()
    assert list(top_names(one)) == list(top_names(other))


def top_names(one: Decided) -> Iterator[tuple[str, int, int, int]]:
    for count, self_ns, worked_ns, name in one.top.tolist():
        yield one.names[name], count, self_ns, worked_ns


# --- What has a span


@some
@given(rows=threads(), budget=budgets)
def test_a_range_that_is_kept_has_what_it_lies_in_and_comes_after_it(
    rows: list[Row], budget: int
) -> None:
    for unit in {row.unit for row in rows}:
        mine = {row.event_id: row for row in rows if row.unit == unit}
        one = folded(rows, budget, unit=unit)
        have_spans = kept(one)
        came = {0}
        for event_id, parent in have_spans.items():
            assert parent in came
            came.add(event_id)
            around = mine[event_id].parent
            assert parent == (around if around in mine else 0)


@some
@given(rows=nested().filter(bool), budget=budgets)
def test_there_are_no_more_spans_than_the_budget_but_one(rows: list[Row], budget: int) -> None:
    one = folded(rows, budget)
    assert 1 <= len(kept(one)) + len(one.summaries) <= max(1, budget)


@some
@given(rows=few_names.filter(bool), budget=st.integers(1, 12))
def test_no_sum_without_a_span_took_longer_than_one_with_a_span(
    rows: list[Row], budget: int
) -> None:
    one = folded(rows, budget)
    shown = set(one.summaries["first_id"].tolist())
    with_span = [1 << 60]
    without = [0]
    for members in folded_by_place(rows, one).values():
        has_span = any(row.event_id in shown for row in members)
        (with_span if has_span else without).append(sum(row.duration_ns for row in members))
    assert max(without) <= min(with_span)


@some
@given(rows=few_names.filter(bool), budget=budgets)
def test_what_stands_beside_the_sum_of_its_siblings_is_an_outlier(
    rows: list[Row], budget: int
) -> None:
    """It took a tenth of the unit (five times the fiftieth below which nothing is shown); if it
    lies directly in the unit, also twice as long as they did on average.

    Siblings elsewhere are compared with others of their path of names, which lie in other ranges.
    """
    rows = [
        replace(one, start_ns=1000 * one.start_ns, duration_ns=1000 * one.duration_ns)
        for one in rows
    ]
    have_spans = kept(folded(rows, budget))
    for one in rows:
        if one.event_id not in set(have_spans) - set(have_spans.values()):
            continue
        siblings = [
            each.duration_ns
            for each in rows
            if (each.parent, each.name) == (one.parent, one.name)
            and each.event_id not in have_spans
        ]
        # Otherwise all that took a thousandth have spans, and only shorter ones are summed up.
        is_tree = max(siblings, default=0) > took(rows) // 1000
        if is_tree:
            assert one.duration_ns >= 5 * (took(rows) // 50)
        if is_tree and one.parent == 0:
            assert one.duration_ns >= 2 * (sum(siblings) // len(siblings))


@some
@given(rows=threads(), budget=budgets, min_ns=st.integers(0, 60))
def test_what_is_shorter_or_in_a_compilation_is_kept_only_if_it_failed_or_a_kept_range_lies_in_it(
    rows: list[Row], budget: int, min_ns: int
) -> None:
    mine = [row for row in rows if row.unit == 0]
    if not mine:
        return
    first = with_what_they_lie_in(mine, EventFlag.EXPOSED) | with_what_they_lie_in(
        mine, EventFlag.ERROR
    )
    others = {
        row.event_id
        for row in mine
        if row.duration_ns < min_ns or row.flags & EventFlag.IN_COMPILATION
    } - first
    unit_ns = 1000 * min_ns  # so that what took less than a thousandth is shorter
    one = folded(rows, budget, duration_ns=unit_ns)
    have_spans = kept(one)
    # The unit has one span in any case.
    assert len(others & set(have_spans) - set(have_spans.values())) <= 1
    whole = folded(rows, len(rows), duration_ns=unit_ns)
    assert {row.event_id for row in mine} - others <= set(kept(whole))


def with_what_they_lie_in(rows: Sequence[Row], flag: EventFlag) -> set[int]:
    """The ranges that have this flag, and what is around them."""
    parent = {row.event_id: row.parent for row in rows}
    found = set[int]()
    for row in rows:
        event_id = row.event_id if row.flags & flag else 0
        while event_id in parent and event_id not in found:
            found.add(event_id)
            event_id = parent[event_id]
    return found


@some
@given(
    rows=nested(flags=(0, 0, 0, int(EventFlag.EXPOSED), int(EventFlag.ERROR))).filter(bool),
    budget=budgets,
)
def test_what_the_program_saw_is_kept_and_of_what_failed_as_much_as_there_is_room_for(
    rows: list[Row], budget: int
) -> None:
    have_spans = set(kept(folded(rows, budget)))
    seen = with_what_they_lie_in(rows, EventFlag.EXPOSED)
    failed = with_what_they_lie_in(rows, EventFlag.ERROR)
    assert seen <= have_spans
    assert failed <= have_spans or len(have_spans) >= 12  # so many the stage keeps at most


# --- Examples


def row(number: int, name: int, start_ns: int, duration_ns: int, parent: int = 0) -> Row:
    return Row(make_event_id(1, number), parent, name, start_ns, duration_ns)


def one_after_another(*ran: tuple[int, int]) -> list[Row]:
    """Ranges directly in the unit, by name and time."""
    rows = list[Row]()
    clock = 0
    for number, (name, duration_ns) in enumerate(ran, 1):
        rows.append(row(number, name, clock, duration_ns))
        clock += duration_ns
    return rows


def spans(one: Decided) -> dict[str, int]:
    """How many ranges the spans of each name stand for."""
    found = Counter(event.name for event in one.plan.batch.events())
    for each in one.summaries:
        found[f"{one.names[int(each['name'])]} (folded)"] += int(each["count"])
    return dict(found)


def test_all_have_spans_that_took_a_thousandth_if_that_leaves_out_less_than_a_tenth() -> None:
    """Of 10,000 ns: 9,000, 11 and 10, but not nine of 9 each, which is less than a thousandth: they
    are a sum.
    """
    rows = one_after_another((1, 9000), (2, 11), (3, 10), *[(9, 9)] * 9)
    assert spans(folded(rows, 12, duration_ns=10_000)) == {
        "name 1": 1,
        "name 2": 1,
        "name 3": 1,
        "name 9 (folded)": 9,
    }


def test_more_ranges_than_spans_are_a_sum_for_each_name() -> None:
    rows = one_after_another(*[(1, 30), (3, 20)] * 10)
    assert spans(folded(rows, 4)) == {"name 1 (folded)": 10, "name 3 (folded)": 10}


def test_the_sums_that_took_longest_have_the_spans() -> None:
    """Twenty calls of five names, which took 500, 400, 300, 200 and 100 ns, and three spans."""
    names = ((1, 125), (2, 100), (3, 75), (9, 50), (10, 25))
    rows = one_after_another(*names * 4)
    assert spans(folded(rows, 3)) == {
        "name 1 (folded)": 4,
        "name 2 (folded)": 4,
        "name 3 (folded)": 4,
    }


@pytest.mark.parametrize(
    ("short", "expected"), [(111, {"name 1": 2}), (112, {"name 1 (folded)": 2})]
)
def test_where_more_than_a_tenth_is_left_out_repeated_calls_are_a_sum(
    short: int, expected: dict[str, int]
) -> None:
    """Ranges of 9 ns are less than a thousandth of 10,000: 111 of them took 999 ns, 112 took 1,008,
    which is more than a tenth.
    """
    rows = one_after_another((1, 4490), (1, 4490), *[(9, 9)] * short)
    found = spans(folded(rows, 12, duration_ns=10_000))
    assert found == {**expected, "name 9 (folded)": short}


def test_what_took_less_than_a_fiftieth_has_no_place_in_a_tree_of_calls() -> None:
    """Of 10,000 ns, 199 are less than a fiftieth, and 200 are one. A fifth of the budget, two of
    ten spans, would be used for less, but two names are long enough.
    """
    rows = one_after_another(*[(1, 960)] * 10, (2, 100), (2, 100), (3, 99), (3, 100))
    assert took(rows) == 9999
    assert spans(folded(rows, 10, duration_ns=10_000)) == {
        "name 1 (folded)": 10,
        "name 2 (folded)": 2,
    }


def test_a_fifth_of_the_budget_is_used_for_shorter_ones() -> None:
    """Of 10,000 ns, 9,900 are one name's; the next two took a two-hundredth, and the budget of
    fifteen has three spans for what took longest.
    """
    rows = one_after_another(*[(1, 495)] * 20, *[(2, 5)] * 10, *[(3, 5)] * 9)
    assert spans(folded(rows, 15, duration_ns=10_000)) == {
        "name 1 (folded)": 20,
        "name 2 (folded)": 10,
        "name 3 (folded)": 9,
    }


@pytest.mark.parametrize(("prefill", "expected"), [(9, [19, 0]), (60, [18, 1])])
def test_a_call_that_took_much_longer_than_the_others_stands_beside_their_sum(
    prefill: int, expected: list[int]
) -> None:
    """A tenth of the unit, and twice as long as the 18 others: 60 ns of 204 are, 9 of 153 not."""
    rows = list[Row]()
    clock = 0
    for number in range(19):
        call = make_event_id(1, 2 * number + 1)
        duration = prefill if number == 0 else 8
        rows += [
            row(2 * number + 2, 3, clock, duration - 1, parent=call),
            row(2 * number + 1, 1, clock, duration),
        ]
        clock += duration
    found = spans(folded(rows, 30))
    assert [found["name 1 (folded)"], found.get("name 1", 0)] == expected
    assert found.get("name 3", 0) == expected[1]  # its operator is alone in it
