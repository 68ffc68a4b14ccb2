"""What is owed after a batch: of any ids, those of a thread that count up as well as others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.batches.owed import Ids, still_owed
from otel_recfn.model.events import make_event_id

pytestmark = pytest.mark.one_python

FEW, MANY = (1, 2, (1 << 24) - 1), tuple(range(1, 12))


def ids(threads: tuple[int, ...], most: int) -> st.SearchStrategy[list[int]]:
    one = st.builds(make_event_id, st.sampled_from(threads), st.integers(0, most))
    return st.lists(st.one_of(one, st.just(0)), max_size=40)


def columns(threads: tuple[int, ...], most: int) -> st.SearchStrategy[tuple[Ids, Ids, Ids]]:
    """What was owed, each once, what rows lie in, and what came."""
    before = ids(threads, most).map(set).map(lambda numbers: [number for number in numbers if number])
    return st.tuples(before, ids(threads, most), ids(threads, most)).map(_columns)


def _columns(given_ids: tuple[list[int], ...]) -> Any:
    return tuple([np.array(column, np.uint64) for column in given_ids])


@given(
    st.one_of(columns(FEW, 30), columns(FEW, 1 << 39), columns(MANY, 30), columns(MANY, 1 << 39)),
)
def test_it_finds_what_has_not_come_each_once_and_the_newest_first(given_ids: tuple[Ids, Ids, Ids]) -> None:
    before, around, came = [column.tolist() for column in given_ids]
    newly = sorted(set(around) - set(came) - {0})
    expected = newly + [one for one in before if one not in {*newly, *came}]
    assert still_owed(*given_ids).tolist() == expected


def test_many_siblings_of_a_range_that_is_open_owe_it_once() -> None:
    came = np.arange(make_event_id(3, 10), make_event_id(3, 30_010), dtype=np.uint64)
    around = np.full(len(came), make_event_id(3, 9), np.uint64)
    assert still_owed(came[:5], around, came).tolist() == [make_event_id(3, 9)]


def test_a_column_of_other_numbers_is_refused() -> None:
    ids_of_none, wrong = np.zeros(0, np.uint64), np.zeros(3, np.float32)
    with pytest.raises(TypeError, match="around"):
        still_owed(ids_of_none, wrong, ids_of_none)
