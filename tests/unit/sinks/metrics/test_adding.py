"""Sums of durations: by series, and their buckets at every bound."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import (
    LogarithmMapping,
)

from helpers.batches import make_batch
from helpers.example_counts import examples
from otel_recfn.model.events import EventFlag, RowKind
from otel_recfn.sinks.metrics.sdk_streams import _LOWEST_POWER, POWER_SCALE, POWERS
from otel_recfn.sinks.metrics.sums import (
    OVERFLOW,
    DurationSums,
    SeriesTable,
    SumColumn,
    min_above,
)

pytestmark = pytest.mark.one_python

MANY_BOUNDS = tuple(n * 1e-6 for n in range(1, 60))
MIN_NS = [min_above(bounds) for bounds in ((0.0, 1e-6, 0.5), (), MANY_BOUNDS, POWERS)]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b", "c", "d"]),
            "scope": st.integers(0, 9),
            "kind": st.sampled_from([RowKind.RANGE, RowKind.RANGE, RowKind.RANGE, RowKind.MARK]),
            "flags": st.sampled_from(
                [EventFlag.NONE, EventFlag.ASYNC, EventFlag.PARTIAL, EventFlag.IN_COMPILATION]
            ),
            "start_ns": st.integers(0, 1000),
            "end_ns": st.one_of(st.integers(0, 100_000), st.integers(0, 1 << 50)),
        }
    ),
    max_size=40,
)


@examples(150)
@given(st.lists(ROWS, max_size=4))
def test_sums_are_those_of_the_rows(given_batches: list[list[dict[str, int]]]) -> None:
    table = SeriesTable(6)
    sums = DurationSums(MIN_NS)
    durations: list[list[int]] = [[] for _ in range(7)]
    for batch in map(make_batch, given_batches):
        sums.add(batch, table.row_series(batch))
        known = {
            (one.scope, one.name): number
            for number, one in enumerate(table.series)
            if one is not None
        }
        for row in batch.events():
            if row.kind == RowKind.RANGE and not row.flags & EventFlag.IN_COMPILATION:
                durations[known.get((row.scope, row.name), OVERFLOW)].append(
                    max(row.end_ns - row.start_ns, 0)
                )
    for number, all_ns in enumerate(durations):
        if all_ns:
            plain = [len(all_ns), sum(all_ns), min(all_ns), max(all_ns), all_ns[-1]]
            assert sums.series[number, : len(SumColumn)].tolist() == plain
        for min_ns, counts in zip(MIN_NS, sums.buckets, strict=True):
            places = Counter(bisect_right(min_ns.tolist(), ns) for ns in all_ns)
            assert counts[number].tolist() == [places[place] for place in range(len(min_ns) + 1)]


@given(st.one_of(st.floats(-1.0, 1e9), st.integers(0, 10**15).map(lambda ns: ns / 1e9)))
def test_a_bound_divides_durations_as_their_seconds_do(bound: float) -> None:
    [least] = min_above([bound]).tolist()
    assert least / 1e9 > bound
    assert least == 0 or (least - 1) / 1e9 <= bound


def test_bounds_that_no_duration_reaches() -> None:
    assert min_above([nextafter(1e300, inf)]).tolist() == [(1 << 63) - 1]


@examples(200)
@given(
    st.lists(
        st.one_of(st.integers(1, 10**15), st.integers(0, 19).map(lambda n: 10**9 << n)), min_size=1
    )
)
def test_power_buckets_are_those_of_the_sdk(durations: list[int]) -> None:
    mapping = LogarithmMapping(POWER_SCALE)
    buckets = MIN_NS[-1].searchsorted(durations, side="right") - 1 + _LOWEST_POWER
    assert buckets.tolist() == [mapping.map_to_index(ns / 1e9) for ns in durations]
    assert min_above(POWERS[:1]).tolist() == [1]
