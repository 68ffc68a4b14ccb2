"""Rows of several batches as one: they say what they said, in the order that is asked for; what was let go is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches import merging
from otel_recfn.batches.merging import WaitingRows, merged
from otel_recfn.model.batch import COLUMN_TYPES, Batch, empty_column
from otel_recfn.model.columns import COLUMNS

pytestmark = pytest.mark.one_python
any_row = st.fixed_dictionaries(
    {
        "event_id": st.integers(1, 1 << 62),
        "name": st.sampled_from(["", "a", "b", "c"]),
        "shapes": st.sampled_from(["", "[]", "[[2,3]]"]),
        "scope": st.integers(0, 9),
        "start_ns": st.integers(0, 1 << 60),
        "thread": st.sampled_from([MAIN_THREAD, WORKER_THREAD]),
        "context": st.sampled_from([context(1, 2), context(1, 3), context(4, 5)]),
        "node_id": st.integers(-1, 3),
    }
)
some_batches = st.lists(
    st.lists(any_row, min_size=1, max_size=6).map(make_batch), min_size=1, max_size=4
)


def rows_of(batches: Sequence[Batch], wanted: Sequence[tuple[int, int]]) -> Batch:
    """Rows by their batch and their place there."""
    rows, first = WaitingRows(lambda: np.zeros(0, np.int64)), [0]
    for batch in batches:
        rows.add(batch, np.arange(len(batch)))
        first.append(first[-1] + len(batch))
    return rows.take(np.array([first[part] + row for part, row in wanted], np.int64))


@given(batches=some_batches, same_names=st.booleans(), data=st.data())
def test_rows_say_what_they_said(
    batches: list[Batch], same_names: bool, data: st.DataObject
) -> None:
    if same_names:
        batches = [
            replace(batches[0], start_ns=batches[0].start_ns + number)
            for number in range(len(batches))
        ]
    places = [(part, row) for part, batch in enumerate(batches) for row in range(len(batch))]
    wanted = data.draw(st.lists(st.sampled_from(places), max_size=12))
    said = [list(batch.events()) for batch in batches]
    whole = rows_of(batches, wanted)
    assert list(whole.events()) == [said[part][row] for part, row in wanted]
    assert [getattr(whole, name).dtype for name in COLUMN_TYPES] == [*COLUMN_TYPES.values()]
    assert (whole.shapes == 0).tolist() == [not said[part][row].shapes for part, row in wanted]
    used = {text for row in whole.events() for text in (row.name, row.shapes)}
    assert {*whole.names} == {"", *used}
    assert whole.names[0] == ""


def in_all(batches: Sequence[Batch]) -> set[str]:
    """The columns in which none of them has anything, which they share."""
    return {column.name for column in COLUMNS if all(batch.is_empty(column) for batch in batches)}


def sharing(batch: Batch) -> Batch:
    """With the columns that nothing is in as a drain leaves them."""
    seldom = [
        column
        for column in COLUMNS
        if column.seldom and (getattr(batch, column.name) == column.empty).all()
    ]
    return replace(
        batch,
        **{column.name: empty_column(column.dtype, len(batch), column.empty) for column in seldom},
    )


@given(batches=some_batches, shares=st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_all_batches_share_is_shared_by_what_is_made_of_them(
    batches: list[Batch], shares: list[bool]
) -> None:
    batches = [
        sharing(batch) if shared else batch for batch, shared in zip(batches, shares, strict=False)
    ]
    places = [(part, row) for part, batch in enumerate(batches) for row in range(len(batch))]
    said, empty = [row for batch in batches for row in batch.events()], in_all(batches)
    assert len(empty) >= 10 if all(shares[: len(batches)]) else not empty
    for whole in (rows_of(batches, places), merged(batches)):
        assert list(whole.events()) == said
        assert in_all([whole]) == empty


@pytest.mark.parametrize("wanted", [1, -1])
def test_what_no_batch_has_is_refused(wanted: int) -> None:
    with pytest.raises(IndexError):
        rows_of([make_batch([{}])], [(0, wanted)])


def numbers(*those: int) -> np.ndarray:
    return np.array(those, np.int64)


def add(rows: WaitingRows, event_ids: Sequence[int], others: int = 0) -> None:
    """Ranges, after so many rows that are no spans."""
    before = [{"event_id": 1000 + number} for number in range(others)]
    batch = make_batch([*before, *[{"event_id": one, "name": f"range {one}"} for one in event_ids]])
    rows.add(batch, np.arange(others, len(batch)))


def told(rows: WaitingRows, *those: int) -> list[str]:
    return [row.name for row in rows.take(numbers(*those)).events()]


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    steps=st.integers(1, 4),
    spare=st.integers(0, 20),
    most=st.integers(1, 5),
)
def test_what_is_kept_outlasts_what_is_dropped(
    sizes: list[int], steps: int, spare: int, most: int
) -> None:
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
def test_what_was_let_go_is_dropped(
    monkeypatch: pytest.MonkeyPatch, spare: int, most_batches: int
) -> None:
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
        rows.add(
            make_batch([{"event_id": 2 * number, "context": context(1, 2)}, of_others]),
            np.arange(2),
        )
        kept.append(2 * number)
    rows.add(make_batch([]), numbers())
    batch = rows.take(numbers(*kept))
    assert {batch.contexts[index] for index in batch.context.tolist()} == {context(1, 2)}
    assert len(batch.contexts) <= 4
    assert len(batch.tracks) == 1


def test_a_thread_is_called_what_was_last_known_of_it() -> None:
    nameless = MAIN_THREAD._replace(name="")
    batches = [make_batch([{"thread": thread}]) for thread in (nameless, MAIN_THREAD, nameless)]
    assert {event.thread.name for event in merged(batches).events()} == {MAIN_THREAD.name}
