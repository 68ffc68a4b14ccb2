"""The nesting of slices by their times, and ways through it, as plain loops find them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.batches.call_paths import call_paths
from otel_recfn.batches.number_sets import nearest, sums_upwards
from otel_recfn.report.nesting import ROUNDING_NS, Slices, nested_by_time, open_at

pytestmark = pytest.mark.one_python

Drawn = list[tuple[int, int, int, tuple[bool, bool]]]
times = st.integers(0, 40)
kinds = st.sampled_from([(False, False), (True, False), (True, True)])
thread_slices = st.lists(st.tuples(st.integers(1, 2), times, times, kinds), max_size=20)


def columns(drawn: Drawn) -> Slices:
    ordered = sorted(drawn, key=lambda each: (each[0], each[1], -each[2]))
    numbers = [(thread, start, length, *kind) for thread, start, length, kind in ordered]
    thread, start, length, can_enclose, begins_block = np.array(numbers, np.int64).reshape(-1, 5).T
    masks = (can_enclose.astype(np.bool_), begins_block.astype(np.bool_))
    return Slices(start, start + length, thread, *masks)


@given(thread_slices)
def test_each_lies_in_the_innermost_that_began_before_and_ends_after_it(drawn: Drawn) -> None:
    slices = columns(drawn)
    nested = nested_by_time(slices)
    ends = slices.end.tolist()
    for place, (start, end, thread, can_enclose, _) in enumerate(
        zip(*[column.tolist() for column in slices], strict=True)
    ):
        holders = [
            each for each in range(place) if slices.can_enclose[each] and not nested.crosses[each]
        ]
        enclosing = [
            each for each in holders if slices.thread[each] == thread and ends[each] > start
        ]
        crosses = bool(enclosing) and end > ends[enclosing[-1]] + ROUNDING_NS
        outlasted = [each for each in enclosing if ends[each] < end]
        if crosses and can_enclose and slices.begins_block[outlasted[0]]:
            for each in outlasted:
                ends[each] = start
            enclosing = enclosing[: -len(outlasted)]
            crosses = False
        if enclosing and not crosses:
            ends[place] = min(end, ends[enclosing[-1]])
        fitting = [each for each in enclosing if ends[each] >= ends[place]]
        assert nested.parent[place] == (fitting[-1] if fitting else -1)
        assert nested.crosses[place] == crosses
    assert nested.end.tolist() == ends


@given(thread_slices, st.lists(st.integers(0, 90), min_size=1, max_size=6))
def test_what_is_open_at_a_time(drawn: Drawn, times: list[int]) -> None:
    slices = columns(drawn)
    nested = nested_by_time(slices)
    found = open_at(slices, nested, 1, np.array(times, np.int64)).tolist()
    for at, place in zip(times, found, strict=True):
        holders = np.flatnonzero(
            slices.can_enclose & ~nested.crosses & (slices.thread == 1) & (slices.start < at)
        ).tolist()
        inside = holders[-1] if holders else -1
        while inside >= 0 and nested.end[inside] <= at:
            inside = int(nested.parent[inside])
        assert place == inside


forests = st.lists(st.integers(0, 30), max_size=30).map(
    lambda drawn: np.array(
        [number % (place + 1) - 1 for place, number in enumerate(drawn)], np.int64
    )
)


@given(forests, st.data())
def test_ways_through_a_forest(
    above: np.ndarray[tuple[int], np.dtype[np.int64]], data: st.DataObject
) -> None:
    amounts = np.array(
        data.draw(st.lists(st.integers(0, 3), min_size=len(above), max_size=len(above))), np.int64
    )
    found = nearest(above, amounts > 1).tolist()
    sums = sums_upwards(above, amounts).tolist()
    for place in range(len(above)):
        way = [place]
        while above[way[-1]] >= 0:
            way.append(int(above[way[-1]]))
        assert sums[place] == sum(amounts[each] for each in way)
        assert found[place] == next((each for each in way if amounts[each] > 1), -1)


def test_calls_that_nest_as_deep_as_there_are_calls() -> None:
    count = 30_000
    above = np.arange(count) - 1
    start = np.arange(count, dtype=np.int64)
    masks = (np.ones(count, np.bool_), np.zeros(count, np.bool_))
    nested = nested_by_time(Slices(start, 2 * count - start, np.zeros(count, np.int64), *masks))
    assert (nested.parent == above).all()
    assert (sums_upwards(above, np.ones(count, np.int64)) == start + 1).all()
    assert (call_paths(above, start % 7).parent == above).all()
