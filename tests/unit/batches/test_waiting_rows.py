"""Rows of what folding keeps: they are there in the order that is asked for, and what it let go is dropped some day."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import context, make_batch
from otel_recfn.batches import merging
from otel_recfn.batches.merging import WaitingRows

pytestmark = pytest.mark.one_python
REQUEST = context(trace_id=0xABC, span_id=0xDEF)


def numbers(*those: int) -> np.ndarray:
    return np.array(those, np.int64)


def add(rows: WaitingRows, event_ids: Sequence[int], others: int = 0) -> None:
    """Ranges, after so many rows that are no spans."""
    before = [{"event_id": 1000 + number} for number in range(others)]
    batch = make_batch([*before, *[{"event_id": one, "name": f"range {one}"} for one in event_ids]])
    rows.add(batch, np.arange(others, len(batch)))


def told(rows: WaitingRows, *those: int) -> list[str]:
    return [row.name for row in rows.take(numbers(*those)).events()]


def test_rows_of_several_batches_come_in_the_order_that_is_asked_for() -> None:
    rows = WaitingRows(numbers)
    add(rows, [11, 12, 13], others=2)
    add(rows, [14, 15])
    assert told(rows, 4, 0, 2) == ["range 15", "range 11", "range 13"]
    assert told(rows) == []


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    steps=st.integers(1, 4),
    spare=st.integers(0, 20),
    most=st.integers(1, 5),
)
def test_what_is_kept_outlasts_what_is_dropped(sizes: list[int], steps: int, spare: int, most: int) -> None:
    kept: list[int] = []
    rows, added = WaitingRows(lambda: numbers(*kept)), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "ROWS_TO_SPARE", spare)
        patch.setattr(merging, "MOST_BATCHES", most)
        for size in sizes:
            ids = list(range(added, added + size))
            kept += [one for one in ids if one % steps == 0]
            add(rows, ids)
            added += size
        assert told(rows, *reversed(kept)) == [f"range {one}" for one in reversed(kept)]


@pytest.mark.parametrize(("spare", "most_batches"), [(3, 1000), (1000, 2)])
def test_what_was_let_go_is_dropped(monkeypatch: pytest.MonkeyPatch, spare: int, most_batches: int) -> None:
    monkeypatch.setattr(merging, "ROWS_TO_SPARE", spare)
    monkeypatch.setattr(merging, "MOST_BATCHES", most_batches)
    newest = [0]
    rows = WaitingRows(lambda: numbers(newest[0]))
    for newest[0] in range(49):
        add(rows, [newest[0]], others=1)
    assert rows.take(numbers(48)).event_id.tolist() == [48]
    assert rows.rows <= 2 + 2 + 2 + spare if spare == 3 else rows.rows <= 2 * (most_batches + 1)


def test_of_tables_only_what_kept_rows_use_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit stays open and has a row in each batch, beside a row of a unit that is decided at once."""
    monkeypatch.setattr(merging, "MOST_BATCHES", 2)
    kept: list[int] = []
    rows = WaitingRows(lambda: numbers(*kept))
    for number in range(20):
        of_others = {"event_id": 2 * number + 1, "context": context(1, 100 + number)}
        rows.add(make_batch([{"event_id": 2 * number, "context": REQUEST}, of_others]), np.arange(2))
        kept.append(2 * number)
    rows.add(make_batch([]), numbers())
    batch = rows.take(numbers(*kept))
    assert {batch.contexts[index] for index in batch.context.tolist()} == {REQUEST}
    assert len(batch.contexts) <= 4
    assert len(batch.tracks) == 1
