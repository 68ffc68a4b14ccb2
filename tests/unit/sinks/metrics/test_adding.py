"""Sums of durations: by series, natively and in Python, and their buckets at every bound."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import batch_of
from numpy.typing import NDArray
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.exponent_mapping import ExponentMapping
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import LogarithmMapping

from batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventKind
from otel_recfn.sinks.metrics.adding import (
    Tally,
    add_durations,
    add_durations_in_python,
    find_series,
    find_series_in_python,
)
from otel_recfn.sinks.metrics.buckets import Layout, PowerRule, least_above
from otel_recfn.sinks.metrics.power_indices import bucket_indices
from otel_recfn.sinks.metrics.series import SeriesTable
from otel_recfn.sinks.metrics.sums import FIELDS, DurationSums, Of
from thoroughness import examples

pytestmark = pytest.mark.one_python

MANY_BOUNDS = tuple(n * 1e-6 for n in range(1, 60))
LAYOUT = Layout([(0.0, 1e-6, 0.5), (), MANY_BOUNDS], [PowerRule(160, 20), PowerRule(3, 5), PowerRule(2, -2)])
LONG = st.lists(st.one_of(st.integers(1, 10**15), st.sampled_from([10**9, 10**9 << 1, 10**9 << 20])), min_size=1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b", "c", "d"]),
            "scope": st.integers(0, 9),
            "kind": st.sampled_from([EventKind.RANGE, EventKind.RANGE, EventKind.RANGE, EventKind.MARK]),
            "flags": st.sampled_from([EventFlag.NONE, EventFlag.ASYNC, EventFlag.PARTIAL]),
            "start_ns": st.integers(0, 1000),
            "end_ns": st.one_of(st.integers(0, 100_000), st.integers(0, 1 << 50)),
        }
    ),
    max_size=40,
)


def found(table: SeriesTable, batch: Batch, find: Callable[..., list[int]] = find_series) -> NDArray[np.int32]:
    """The series of each row, all of them known."""
    numbers = np.zeros(len(batch), np.int32)
    slots = table.slots(batch)
    table.learn(find(batch, slots, numbers))
    assert find(batch, slots, numbers) == []
    return numbers


@examples(150)
@given(st.lists(ROWS, max_size=4))
def test_both_twins_come_to_the_same_sums(batches: list[list[dict[str, int]]]) -> None:
    pytest.importorskip("otel_recfn._native")
    tables, sums = [SeriesTable(6), SeriesTable(6)], [DurationSums(LAYOUT), DurationSums(LAYOUT)]
    tallies = [np.zeros(len(Tally), np.int64) for _ in range(2)]
    for rows in batches:
        batch = make_batch(rows)
        numbers = [found(table, batch, find) for table, find in zip(tables, (find_series, find_series_in_python), strict=True)]
        assert numbers[0].tolist() == numbers[1].tolist()
        add_durations(batch, numbers[0], sums[0], tallies[0])
        add_durations(batch, numbers[1], sums[1], tallies[1], add_durations_in_python)
    assert tallies[0].tolist() == tallies[1].tolist()
    assert sums[0].series.tolist() == sums[1].series.tolist()
    for mine, other in zip(sums[0].bounded, sums[1].bounded, strict=True):
        assert mine.tolist() == other.tolist()
    for series in range(len(tables[0])):
        assert [one.buckets(series) for one in sums[0].powers] == [one.buckets(series) for one in sums[1].powers]


@given(st.one_of(st.floats(-1.0, 1e9), st.integers(0, 10**15).map(lambda ns: ns / 1e9)))
def test_a_bound_divides_durations_as_their_seconds_do(bound: float) -> None:
    least = least_above(bound)
    assert least / 1e9 > bound
    assert least == 0 or (least - 1) / 1e9 <= bound


def test_bounds_that_no_duration_reaches() -> None:
    assert least_above(nextafter(1e300, inf)) == (1 << 63) - 1


@examples(200)
@given(
    st.lists(st.one_of(st.integers(1, 10**15), st.integers(0, 19).map(lambda n: 10**9 << n)), min_size=1), st.integers(1, 20)
)
def test_power_buckets_are_those_of_the_sdk(durations: list[int], scale: int) -> None:
    indices = bucket_indices(np.array(durations, np.int64), scale, PowerRule(160, scale).factor).tolist()
    assert indices == [LogarithmMapping(scale).map_to_index(ns / 1e9) for ns in durations]
    coarse = bucket_indices(np.array(durations, np.int64), -(scale % 10), 0.0).tolist()
    assert coarse == [ExponentMapping(-(scale % 10)).map_to_index(ns / 1e9) for ns in durations]


def test_more_series_than_there_may_be_are_summed_up_in_one() -> None:
    table, sums, tally = SeriesTable(2), DurationSums(LAYOUT), np.zeros(len(Tally), np.int64)
    batch = batch_of([(f"op {n}", 0, 10) for n in range(5)] + [("op 0", 0, 5)])
    add_durations(batch, found(table, batch), sums, tally)
    assert [one and one.name for one in table.series] == [None, "op 0", "op 1"]
    assert sums.series[:3, [Of.COUNT, Of.TOTAL]].tolist() == [[3, 30], [2, 15], [1, 10]]
    assert tally.tolist() == [6, 0, 0, 3]


def test_a_name_has_its_series_also_in_another_list_of_names() -> None:
    table = SeriesTable()
    for rows in ([("a", 0, 1), ("b", 0, 1)], [("b", 0, 1), ("c", 0, 1), ("a", 0, 1)]):
        found(table, batch_of(rows))
    assert sorted([one.name for one in table.series if one is not None]) == ["a", "b", "c"]


def test_sums_keep_what_they_have_when_they_grow() -> None:
    table, sums, tally = SeriesTable(), DurationSums(LAYOUT, 3), np.zeros(len(Tally), np.int64)
    for n in range(20):
        batch = batch_of([(f"op {n}", 0, 1000 + n), ("same", 0, 7)])
        numbers = found(table, batch)
        sums = sums.grown(len(table))
        add_durations(batch, numbers, sums, tally)
    by_name = {one.name: number for number, one in enumerate(table.series) if one is not None}
    assert sums.series[by_name["same"], [Of.COUNT, Of.TOTAL]].tolist() == [20, 140]
    assert sums.series[by_name["op 3"], Of.MOST] == 1003
    assert sum(sums.powers[0].buckets(by_name["same"])[2]) == 20


def test_wrong_arrays_are_refused_and_touch_no_memory() -> None:
    native = pytest.importorskip("otel_recfn._native")
    batch, table = batch_of([("a", 0, 1)]), SeriesTable()
    slots = found(table, batch)
    short = np.zeros(1, np.int64)
    series, tally = np.zeros((4, FIELDS), np.int64), np.zeros(len(Tally), np.int64)
    with pytest.raises(ValueError, match="tally"):
        native.add_durations(batch, slots, series, short, [], [])
    with pytest.raises(ValueError, match="counts"):
        native.add_durations(batch, slots, series, tally, [(np.zeros(3, np.int64), short)], [])
    with pytest.raises(ValueError, match="ranges"):
        native.add_durations(batch, slots, series, tally, [], [(20, 1.0, np.zeros(1, np.int32), 160, short, short)])
    with pytest.raises(ValueError, match="scale"):
        native.add_durations(batch, slots, series, tally, [], [(21, 1.0, np.zeros(1, np.int32), 160, short, short)])
    with pytest.raises(TypeError, match="numbers"):
        native.add_durations(batch, slots.astype(np.int64), series, tally, [], [])
    native.add_durations(batch, slots, np.zeros((0, FIELDS), np.int64), tally, [], [])
    assert tally.tolist() == [0, 0, 0, 0]
