"""Rows of what folding keeps: they are there in the order that is asked for, and what it let go is dropped some day."""

from __future__ import annotations

import numpy as np
import pytest

from batches import make_batch
from otel_recfn.batches.fold import kept_rows
from otel_recfn.batches.fold.kept_rows import KeptRows


def ids_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_rows_of_several_batches_come_in_the_order_that_is_asked_for() -> None:
    kept = [ids_of(1, 3)]
    rows = KeptRows(lambda: kept[0])
    rows.add(make_batch([{"event_id": number, "name": f"range {number}"} for number in (1, 2, 3)]))
    kept[0] = ids_of(1, 3, 5)
    rows.add(make_batch([{"event_id": number, "name": f"range {number}"} for number in (4, 5)]))
    assert [row.name for row in rows.take(ids_of(5, 1, 3)).events()] == ["range 5", "range 1", "range 3"]
    assert not len(rows.take(ids_of()))


def test_one_that_there_was_no_memory_for_is_told() -> None:
    rows = KeptRows(lambda: ids_of(1))
    rows.add(make_batch([{"event_id": 1}]))
    with pytest.raises(MemoryError):
        rows.take(ids_of(1, 2))


@pytest.mark.parametrize(("spare", "most_batches"), [(3, 1000), (1000, 2)])
def test_what_was_let_go_is_dropped(monkeypatch: pytest.MonkeyPatch, spare: int, most_batches: int) -> None:
    monkeypatch.setattr(kept_rows, "ROWS_TO_SPARE", spare)
    monkeypatch.setattr(kept_rows, "MOST_BATCHES", most_batches)
    newest = [0]
    rows = KeptRows(lambda: ids_of(newest[0]))
    for newest[0] in range(1, 50):
        rows.add(make_batch([{"event_id": newest[0]}]))
    assert rows.take(ids_of(49)).event_id.tolist() == [49]
    assert len(rows) <= 2 + spare if spare == 3 else len(rows) <= most_batches + 1
