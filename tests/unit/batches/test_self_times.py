"""What a range spent without its children, however its children's rows and its own are cut into batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.self_times import ByName, SelfTimes, nesting, self_times
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventKind, make_event_id
from otel_recfn.store.averages import key_averages

pytestmark = pytest.mark.one_python

NAMES = ("a", "b", "c")
TRACKS = (MAIN_THREAD, WORKER_THREAD)

row = st.tuples(
    st.sampled_from(TRACKS),
    st.integers(0, 30),  # what it lies in, of the rows around it, if that lasts longer
    st.integers(0, 1000),
    st.sampled_from(NAMES),
    st.sampled_from([EventFlag.NONE, EventFlag.NONE, EventFlag.NONE, EventFlag.ASYNC]),
    st.sampled_from([EventKind.RANGE, EventKind.RANGE, EventKind.RANGE, EventKind.MARK]),
)
cuts = st.lists(st.integers(0, 30), max_size=6)


def rows_of(drawn: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    ids = [make_event_id(track.number, number + 1) for number, (track, *_) in enumerate(drawn)]
    return [
        {
            "event_id": ids[number],
            "thread": track,
            "parent": ids[above] if above < len(ids) and drawn[above][2] > spent else 0,  # so that none lies in itself
            "root": ids[number],
            "start_ns": 10_000,
            "end_ns": 10_000 + spent,
            "name": name,
            "flags": flags,
            "kind": kind,
        }
        for number, (track, above, spent, name, flags, kind) in enumerate(drawn)
    ]


def in_batches(rows: list[dict[str, Any]], cuts: list[int]) -> list[Batch]:
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [make_batch(rows[first:last]) for first, last in pairwise(edges)]


def sums(batches: list[Batch], stage: SelfTimes) -> dict[str, int]:
    found: dict[str, int] = {}
    for batch in batches:
        by_name = ByName(batch)
        for first, own in zip(by_name.first.tolist(), by_name.sums(stage.take(batch)).tolist(), strict=True):
            name = batch.names[batch.name[first]]
            found[name] = found.get(name, 0) + own
    return found


def by_definition(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Row by row: what counts is synchronous, on its parent's track, and stands before it."""
    place = {one["event_id"]: number for number, one in enumerate(rows)}
    counts = [one["kind"] == EventKind.RANGE and not one["flags"] & EventFlag.ASYNC for one in rows]
    own = [one["end_ns"] - one["start_ns"] if counts[number] else 0 for number, one in enumerate(rows)]
    spent = list(own)
    for number, one in enumerate(rows):
        above = place.get(one["parent"], -1)
        if above > number and counts[number] and counts[above] and rows[above]["thread"] is one["thread"]:
            own[above] -= spent[number]
    found: dict[str, int] = {}
    for number, one in enumerate(rows):
        if one["kind"] == EventKind.RANGE:
            found[one["name"]] = found.get(one["name"], 0) + own[number]
    return found


@given(st.lists(row, max_size=30), cuts)
def test_the_sums_are_the_same_however_rows_are_cut_into_batches(drawn: list[tuple[Any, ...]], cuts: list[int]) -> None:
    rows = rows_of(drawn)
    assert sums(in_batches(rows, cuts), SelfTimes()) == by_definition(rows)


@given(st.lists(row, max_size=30), cuts)
def test_key_averages_of_all_rows_say_the_same(drawn: list[tuple[Any, ...]], cuts: list[int]) -> None:
    rows = rows_of(drawn)
    whole = make_batch(rows)
    assert {one.key: round(one.self_cpu_time_total * 1000) for one in key_averages(whole)} == by_definition(rows)
    assert np.array_equal(self_times(whole, nesting(whole)), SelfTimes().take(whole))


def test_parents_that_never_come_are_forgotten_and_those_that_do_are_not() -> None:
    stage, outer = SelfTimes(most=10), make_event_id(1, 1)
    for number in range(200):
        child = {"event_id": make_event_id(1, 1000 + 2 * number), "parent": outer, "root": outer, "end_ns": 10, "start_ns": 0}
        lost = child | {"event_id": make_event_id(1, 1001 + 2 * number), "parent": make_event_id(1, 2 + number)}
        assert stage.take(make_batch([child, lost])).tolist() == [10, 10]
        assert len(stage._awaited) <= 10
    assert stage.take(make_batch([{"event_id": outer, "start_ns": 0, "end_ns": 5000}])).tolist() == [3000]
    assert stage.take(make_batch([{"event_id": outer, "start_ns": 0, "end_ns": 5000}])).tolist() == [5000]
