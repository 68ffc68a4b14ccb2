"""Sets of numbers: the same answers as numpy's functions."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_recfn
from otel_recfn.batches.number_sets import begins_of, distinct, groups, is_in, places_in
from thoroughness import examples

COLUMNS = {"uint32": (1 << 32) - 1, "uint64": (1 << 64) - 1}
few = st.lists(st.integers(0, 5), max_size=30)


@st.composite
def columns(draw: st.DrawFn) -> np.ndarray:
    """Numbers that repeat, small ones and those near the end of their type."""
    kind = draw(st.sampled_from(sorted(COLUMNS)))
    top = draw(st.sampled_from([5, COLUMNS[kind]]))
    return np.array([top - each for each in draw(few)], dtype=kind)


@given(columns())
def test_each_number_once(numbers: np.ndarray) -> None:
    assert distinct(numbers).tolist() == np.unique(numbers).tolist()
    assert distinct(numbers).dtype == numbers.dtype


@given(columns())
def test_each_number_with_its_place_and_count(numbers: np.ndarray) -> None:
    found = groups(numbers)
    expected = np.unique(numbers, return_index=True, return_counts=True)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@given(columns(), few)
def test_membership(numbers: np.ndarray, others: list[int]) -> None:
    assert is_in(numbers, others).tolist() == np.isin(numbers, others).tolist()


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_nothing_is_in_an_empty_column(kind: str) -> None:
    numbers = np.array([1, 2], dtype=kind)
    assert is_in(numbers, numbers[:0]).tolist() == [False, False]
    assert is_in(numbers[:0], numbers).tolist() == []


@pytest.mark.parametrize("layer", ["sinks", "batches", "model", "recording", "session", "sources", "support"])
def test_what_runs_in_threads_of_ours_does_not_call_what_imports(layer: str) -> None:
    calls = re.compile(r"np\.(unique|isin|in1d|intersect1d|setdiff1d|union1d|ma)\b")
    sources = list(Path(otel_recfn.__file__).parent.joinpath(layer).rglob("*.py"))
    assert sources
    of_the_program = {"averages.py", "call_tree.py"}  # in its threads, when it asks
    sources = [path for path in sources if path.name not in of_the_program]
    assert not [path.name for path in sources if calls.search(path.read_text(encoding="utf-8"))]


@examples(100)
@given(st.lists(st.integers(0, 4), max_size=9), st.data())
def test_those_that_are_asked_for_in_that_order(lengths: list[int], data: st.DataObject) -> None:
    ends = np.cumsum(np.array(lengths, np.int64))
    which = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6)) if lengths else []
    asked = np.array(which, np.int64)
    begins = begins_of(ends, asked)
    expected = [place for one in which for place in range(sum(lengths[:one]), sum(lengths[: one + 1]))]
    assert places_in(begins, ends[asked] - begins).tolist() == expected
