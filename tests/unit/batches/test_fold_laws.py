"""The model of folding keeps its laws: nothing is lost, what is kept hangs together and is the longest, cuts don't matter."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from fold_programs import Row, finished, nested, planned, same, threads
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from models.call_tree import SHARES_OF_ONE, least_of_path
from models.finished import FinishedUnits
from models.folding import LEAST_SHARE, FoldModel
from otel_recfn.model.events import ORDINAL_BITS, EventFlag, make_event_id

pytestmark = pytest.mark.one_python

budgets = st.integers(0, 12)
some = examples(50)  # rows of a whole program each


def fold_of(budget: int) -> FoldModel:
    return FoldModel(budget)


def self_times(rows: list[Row]) -> dict[int, int]:
    own = {row.event_id: 0 if row.flags & EventFlag.ASYNC else row.duration_ns for row in rows}
    place = {row.event_id: index for index, row in enumerate(rows)}
    for index, row in enumerate(rows):
        same_thread = row.parent >> ORDINAL_BITS == row.event_id >> ORDINAL_BITS
        around = place.get(row.parent, -1)
        if (
            same_thread
            and around > index
            and not (row.flags | rows[around].flags) & EventFlag.ASYNC
        ):
            own[row.parent] -= row.duration_ns
    return own


def with_what_they_lie_in(rows: list[Row], flag: EventFlag) -> set[int]:
    """The ranges that have this flag, and what is around them: an asynchronous range lies in nothing."""
    found = {row.event_id for row in rows if row.flags & flag}
    for place, row in enumerate(rows):  # what is around a range comes after it
        if row.event_id in found and not row.flags & EventFlag.ASYNC:
            found |= {around.event_id for around in rows[place:] if around.event_id == row.parent}
    return found


def totals(one: FinishedUnits) -> tuple[int, int]:
    return len(one.kept) + int(one.path_count.sum()), int(
        one.kept_self_ns.sum() + one.path_self_ns.sum()
    )


def took(rows: list[Row]) -> int:
    return max([row.start_ns + row.duration_ns for row in rows], default=0)


@some
@given(rows=nested(), budget=budgets)
def test_of_repeated_siblings_those_are_kept_that_stand_out(rows: list[Row], budget: int) -> None:
    one = finished(fold_of(budget), rows, budget, duration_ns=took(rows))
    if len(rows) > budget:
        kept, around = set(one.kept.tolist()), set(one.kept_parent.tolist())
        summed_up = Counter((row.parent, row.name) for row in rows if row.event_id not in kept)
        innermost = [row for row in rows if row.event_id in kept - around]
        for row in innermost:
            stands_out = row.duration_ns >= SHARES_OF_ONE * least_of_path(took(rows), budget)
            assert not summed_up[row.parent, row.name] or stands_out


@pytest.mark.parametrize(("prefill", "expected"), [(9, [19, 0]), (60, [18, 1])])
def test_a_call_that_took_much_longer_than_the_others_stands_beside_their_sum(
    prefill: int, expected: list[int]
) -> None:
    """Ten shares of fifty are a tenth: what took less, or less than twice the others, is in the sum."""
    rows, clock = [], 0
    for number in range(19):
        call, operator = make_event_id(1, 2 * number + 1), make_event_id(1, 2 * number + 2)
        duration = prefill if number == 0 else 8
        rows += [Row(operator, call, 2, clock, duration - 1), Row(call, 0, 1, clock, duration)]
        clock += duration
    one = finished(fold_of(30), rows, 30, duration_ns=clock)
    assert [int(one.path_count[0]), sum(one.kept_name == 1)] == expected
    assert len(one.kept) == 2 * expected[1]  # its operator is alone in it


@some
@given(rows=threads(), budget=budgets, cuts=st.lists(st.integers(0, 60)))
def test_all_is_there_however_it_is_cut(rows: list[Row], budget: int, cuts: list[int]) -> None:
    own = self_times(rows)
    for unit in (0, 1):
        one = finished(fold_of(12), rows, budget, unit=unit)
        mine = [row for row in rows if row.unit == unit]
        assert totals(one) == (len(mine), sum(own[row.event_id] for row in mine))
        same(one, finished(fold_of(12), rows, budget, cuts, unit))


@some
@given(rows=threads(), budget=budgets, least_ns=st.integers(0, 60))
def test_what_is_shorter_or_in_a_compilation_is_kept_only_if_it_failed_or_a_kept_range_lies_in_it(
    rows: list[Row], budget: int, least_ns: int
) -> None:
    mine = [row for row in rows if row.unit == 0]
    one = finished(fold_of(12), rows, budget, duration_ns=least_ns * LEAST_SHARE)
    assert totals(one)[0] == len(mine)
    first = with_what_they_lie_in(mine, EventFlag.SHOWN) | with_what_they_lie_in(
        mine, EventFlag.ERROR
    )
    others = {
        row.event_id
        for row in mine
        if row.duration_ns < least_ns or row.flags & EventFlag.IN_COMPILATION
    } - first
    without_kept_child = others & set(one.kept.tolist()) - set(one.kept_parent.tolist())
    assert (
        len(without_kept_child) <= 1
    )  # the budget may end between a range and the one in it by which it ranks
    whole = finished(fold_of(len(rows)), rows, len(rows), duration_ns=least_ns * LEAST_SHARE)
    assert {row.event_id for row in mine} - others <= set(whole.kept.tolist())


@some
@given(rows=nested(), budget=budgets)
def test_what_is_folded_stands_on_the_nearest_kept_range_by_its_path(
    rows: list[Row], budget: int
) -> None:
    one = finished(fold_of(budget), rows, budget)
    by_id, kept = {row.event_id: row for row in rows}, set(one.kept.tolist())
    expected: dict[tuple[int, tuple[int, ...]], list[Row]] = {}
    for row in rows:
        path, above = (row.name,), row.parent
        while above and above not in kept:
            path, above = (by_id[above].name, *path), by_id[above].parent
        if row.event_id not in kept:
            expected.setdefault((above, path), []).append(row)
    own = self_times(rows)
    sums = {}
    for place, members in expected.items():
        times = [row.duration_ns for row in members]
        first = min(members, key=lambda row: (row.start_ns, row.event_id))
        total_own = sum(own[row.event_id] for row in members)
        sums[place] = [
            len(times),
            sum(times),
            total_own,
            min(times),
            max(times),
            first.start_ns,
            first.event_id,
        ]
    assert paths_of(one) == sums


def paths_of(one: FinishedUnits) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    paths: list[tuple[int, ...]] = []
    for place, above in enumerate(one.path_above.tolist()):
        paths.append((*(paths[above] if above >= 0 else ()), int(one.path_name[place])))
        holder = int(one.path_holder[place])
        columns = [
            one.path_count,
            one.path_total_ns,
            one.path_self_ns,
            one.path_shortest_ns,
            one.path_longest_ns,
        ]
        values = [int(column[place]) for column in [*columns, one.path_first_ns, one.path_first_id]]
        found[int(one.kept[holder]) if holder >= 0 else 0, paths[-1]] = values
    return found


@some
@given(rows=threads(), budget=budgets, parts=st.lists(st.integers(0, 60), max_size=4))
def test_parts_of_a_unit_add_up_and_hang_together(
    rows: list[Row], budget: int, parts: list[int]
) -> None:
    fold, rows = fold_of(12), [row for row in rows if row.unit == 0]
    edges = [0, *sorted({cut for cut in parts if cut < len(rows)}), len(rows)]
    came: list[FinishedUnits] = []
    for first, last in itertools.pairwise(edges):
        fold.add_planned(planned(rows[first:last]), first)
        came.append(fold.finish([0], [budget], [0], [last < len(rows)]))
    assert sum(totals(one)[0] for one in came) == len(rows)
    assert sum(totals(one)[1] for one in came) == sum(self_times(rows).values())
    for one in came:
        assert set(one.kept_parent.tolist()) <= {0, *one.kept.tolist()}
