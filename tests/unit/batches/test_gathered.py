"""Rows of several batches as one: they say what they said, in the order that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
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
some_batches = st.lists(st.lists(any_row, min_size=1, max_size=6).map(make_batch), min_size=1, max_size=4)


def rows_of(batches: Sequence[Batch], wanted: Sequence[tuple[int, int]]) -> Batch:
    """Rows by their batch and their place there."""
    rows, first = WaitingRows(lambda: np.zeros(0, np.int64)), [0]
    for batch in batches:
        rows.add(batch, np.arange(len(batch)))
        first.append(first[-1] + len(batch))
    return rows.take(np.array([first[part] + row for part, row in wanted], np.int64))


@given(batches=some_batches, same_names=st.booleans(), data=st.data())
def test_rows_say_what_they_said(batches: list[Batch], same_names: bool, data: st.DataObject) -> None:
    if same_names:
        batches = [replace(batches[0], start_ns=batches[0].start_ns + number) for number in range(len(batches))]
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
    seldom = [column for column in COLUMNS if column.seldom and (getattr(batch, column.name) == column.empty).all()]
    return replace(batch, **{column.name: empty_column(column.dtype, len(batch), column.empty) for column in seldom})


@given(batches=some_batches, shares=st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_all_batches_share_is_shared_by_what_is_made_of_them(batches: list[Batch], shares: list[bool]) -> None:
    batches = [sharing(batch) if shared else batch for batch, shared in zip(batches, shares, strict=False)]
    places = [(part, row) for part, batch in enumerate(batches) for row in range(len(batch))]
    said, empty = [row for batch in batches for row in batch.events()], in_all(batches)
    assert len(empty) >= 10 if all(shares[: len(batches)]) else not empty
    for whole in (rows_of(batches, places), merged(batches)):
        assert list(whole.events()) == said
        assert in_all([whole]) == empty


@given(batch=st.lists(any_row, min_size=1, max_size=6).map(make_batch), step=st.integers(2, 3))
def test_columns_need_not_be_contiguous(batch: Batch, step: int) -> None:
    apart = batch.take(slice(None, None, -step))
    places = [(0, row) for row in range(len(apart))]
    assert list(rows_of([apart], places).events()) == list(apart.events())


@pytest.mark.parametrize("wanted", [1, -1])
def test_what_no_batch_has_is_refused(wanted: int) -> None:
    with pytest.raises(IndexError):
        rows_of([make_batch([{}])], [(0, wanted)])
