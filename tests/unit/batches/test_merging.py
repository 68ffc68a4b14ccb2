"""Rows of several batches as one: they keep their values, in order, and tables have each value
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches.merging import merged
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


@given(batches=some_batches, same_names=st.booleans())
def test_rows_keep_their_values(batches: list[Batch], same_names: bool) -> None:
    if same_names:
        batches = [
            replace(batches[0], start_ns=batches[0].start_ns + number)
            for number in range(len(batches))
        ]
    before = [event for batch in batches for event in batch.events()]
    whole = merged(batches)
    assert list(whole.events()) == before
    assert [getattr(whole, name).dtype for name in COLUMN_TYPES] == [*COLUMN_TYPES.values()]
    assert (whole.shapes == 0).tolist() == [not event.shapes for event in before]
    used = {text for row in whole.events() for text in (row.name, row.shapes)}
    assert sorted(whole.names) == sorted({"", *used})
    assert whole.names[0] == ""


def in_all(batches: Sequence[Batch]) -> set[str]:
    """The columns in which none of them has anything, which they share."""
    return {column.name for column in COLUMNS if all(batch.is_empty(column) for batch in batches)}


def sharing(batch: Batch) -> Batch:
    """With the columns that nothing is in as a drain leaves them."""
    is_optional = [
        column
        for column in COLUMNS
        if column.is_optional and (getattr(batch, column.name) == column.empty).all()
    ]
    return replace(
        batch,
        **{
            column.name: empty_column(column.dtype, len(batch), column.empty)
            for column in is_optional
        },
    )


@given(batches=some_batches, shares=st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_all_batches_share_is_shared_by_what_is_made_of_them(
    batches: list[Batch], shares: list[bool]
) -> None:
    batches = [
        sharing(batch) if shared else batch for batch, shared in zip(batches, shares, strict=False)
    ]
    said = [row for batch in batches for row in batch.events()]
    empty = in_all(batches)
    assert len(empty) >= 10 if all(shares[: len(batches)]) else not empty
    whole = merged(batches)
    assert list(whole.events()) == said
    assert in_all([whole]) == empty


def test_a_thread_is_called_what_was_last_known_of_it() -> None:
    nameless = MAIN_THREAD._replace(name="")
    batches = [make_batch([{"thread": thread}]) for thread in (nameless, MAIN_THREAD, nameless)]
    assert {event.thread.name for event in merged(batches).events()} == {MAIN_THREAD.name}
