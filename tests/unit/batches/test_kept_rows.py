"""Rows of what folding keeps: they are there in the order that is asked for, and what it let go is dropped some day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

from batches import make_batch
from otel_recfn.batches.fold import kept_rows
from otel_recfn.batches.fold.kept_rows import KeptRanges, KeptRows
from otel_recfn.batches.span_plan import Fate, SpanPlan

pytestmark = pytest.mark.one_python

SPANS = [SpanContext(1, number, False) for number in range(1, 4)]


def numbers(*those: int) -> np.ndarray:
    return np.array(those, np.int64)


def plan_of(event_ids: Sequence[int], links: Mapping[int, tuple[int, int]] | None = None, others: int = 0) -> SpanPlan:
    """Ranges, what some of them link to in which of the spans above, and so many rows before them that are no spans."""
    rows = [{"event_id": 1000 + number} for number in range(others)]
    batch = make_batch([*rows, *[{"event_id": one, "name": f"range {one}"} for one in event_ids]])
    row, nothing = np.arange(others, len(batch)), np.zeros(len(event_ids), np.int64)
    link = np.array([(links or {}).get(one, (0, 0)) for one in event_ids], np.int64).reshape(-1, 2)
    parent, fate = nothing.astype(np.uint64), np.full(len(batch), Fate.IN_SPAN, np.uint8)
    return SpanPlan(batch, fate, row, parent, nothing, link[:, 0].astype(np.uint64), link[:, 1], SPANS)


def add(rows: KeptRows, plan: SpanPlan) -> None:
    rows.make_room()
    rows.add(plan, rows.new_numbers(len(plan.row)))


def told(ranges: KeptRanges) -> list[tuple[str, int, int]]:
    linked = zip(ranges.linked_id.tolist(), ranges.linked_above.tolist(), strict=True)
    links = [(span_id, ranges.spans[above].span_id) if span_id else (0, 0) for span_id, above in linked]
    return [(row.name, *link) for row, link in zip(ranges.batch.events(), links, strict=True)]


def test_rows_of_several_batches_come_in_the_order_that_is_asked_for() -> None:
    rows = KeptRows(numbers)
    add(rows, plan_of([11, 12, 13], {13: (7, 2)}, others=2))
    add(rows, plan_of([14, 15], {15: (9, 1)}))
    assert told(rows.take(numbers(4, 0, 2))) == [("range 15", 9, 2), ("range 11", 0, 0), ("range 13", 7, 3)]
    assert told(rows.take(numbers())) == []


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    steps=st.integers(1, 4),
    spare=st.integers(0, 20),
    most=st.integers(1, 5),
)
def test_what_is_kept_outlasts_what_is_dropped(sizes: list[int], steps: int, spare: int, most: int) -> None:
    kept: list[int] = []
    rows, added = KeptRows(lambda: numbers(*kept)), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_rows, "ROWS_TO_SPARE", spare)
        patch.setattr(kept_rows, "MOST_BATCHES", most)
        for size in sizes:
            ids = list(range(added, added + size))
            kept += [one for one in ids if one % steps == 0]
            add(rows, plan_of(ids, {one: (one + 1, one % 3) for one in ids if one % 2}))
            added += size
        links = {one: (one + 1, SPANS[one % 3].span_id) if one % 2 else (0, 0) for one in kept}
        assert told(rows.take(numbers(*reversed(kept)))) == [(f"range {one}", *links[one]) for one in reversed(kept)]


@pytest.mark.parametrize(("spare", "most_batches"), [(3, 1000), (1000, 2)])
def test_what_was_let_go_is_dropped(monkeypatch: pytest.MonkeyPatch, spare: int, most_batches: int) -> None:
    monkeypatch.setattr(kept_rows, "ROWS_TO_SPARE", spare)
    monkeypatch.setattr(kept_rows, "MOST_BATCHES", most_batches)
    newest = [0]
    rows = KeptRows(lambda: numbers(newest[0]))
    for newest[0] in range(49):
        add(rows, plan_of([newest[0]], others=1))
    assert rows.take(numbers(48)).batch.event_id.tolist() == [48]
    assert len(rows) <= 2 + 2 + 2 + spare if spare == 3 else len(rows) <= 2 * (most_batches + 1)
