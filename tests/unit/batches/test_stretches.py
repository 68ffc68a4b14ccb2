"""Stretches of a column are put one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.batches.number_sets import begins_of, places_in
from thoroughness import examples


@examples(100)
@given(st.lists(st.integers(0, 4), max_size=9), st.data())
def test_those_that_are_asked_for_in_that_order(lengths: list[int], data: st.DataObject) -> None:
    ends = np.cumsum(np.array(lengths, np.int64))
    which = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6)) if lengths else []
    asked = np.array(which, np.int64)
    begins = begins_of(ends, asked)
    expected = [place for one in which for place in range(sum(lengths[:one]), sum(lengths[: one + 1]))]
    assert places_in(begins, ends[asked] - begins).tolist() == expected
