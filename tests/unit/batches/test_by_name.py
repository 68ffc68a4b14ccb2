"""Sums by name, of one batch and of several."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import BASE_NS, make_batch
from otel_recfn.batches.self_times import ByName
from otel_recfn.model.events import EventKind

pytestmark = pytest.mark.one_python

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b", "c"]),
            "shapes": st.sampled_from(["", "[[2]]", "[[3]]"]),
            "kind": st.sampled_from([EventKind.RANGE, EventKind.RANGE, EventKind.MARK]),
            "start_ns": st.integers(BASE_NS, BASE_NS + 5),
            "flops": st.integers(0, 1 << 60),
        }
    ),
    max_size=20,
)


def key_of(row: dict[str, Any], with_shapes: bool) -> tuple[str, str]:
    return row["name"], row["shapes"] if with_shapes else ""


@given(ROWS, st.booleans())
def test_each_range_is_in_one_group_and_groups_stand_as_they_first_began(rows: list[dict[str, Any]], with_shapes: bool) -> None:
    batch = make_batch(rows)
    groups = ByName(batch, with_shapes=with_shapes)
    counts, flops = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    ranges = [row for row in rows if row["kind"] == EventKind.RANGE]
    for row in sorted(ranges, key=lambda row: row["start_ns"]):
        counts[key_of(row, with_shapes)] += 1
        flops[key_of(row, with_shapes)] += row["flops"] % (1 << 58)
    assert [key_of(rows[first], with_shapes) for first in groups.first.tolist()] == list(counts)
    assert groups.counts.tolist() == list(counts.values())
    assert groups.sums(batch.flops % (1 << 58)).tolist() == list(flops.values())


@given(ROWS, st.integers(0, 20))
def test_the_sums_of_batches_add_up(rows: list[dict[str, Any]], cut: int) -> None:
    added = Counter[str]()
    for part in (rows[:cut], rows[cut:]):
        batch = make_batch(part)
        groups = ByName(batch)
        for first, nanoseconds in zip(groups.first.tolist(), groups.sums(batch.end_ns - batch.start_ns).tolist(), strict=True):
            added[batch.names[batch.name[first]]] += nanoseconds
    ranges = [row["name"] for row in rows if row["kind"] == EventKind.RANGE]
    assert added == Counter({name: 500 * count for name, count in Counter(ranges).items()})
