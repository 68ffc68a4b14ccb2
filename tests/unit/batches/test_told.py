"""What is told of folded ranges is what the model tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fold_programs import Row, planned, threads
from hypothesis import given
from hypothesis import strategies as st

from models.telling import told_of_model
from otel_recfn.batches.fold.finished import FinishedUnits
from otel_recfn.batches.fold.told import KeptExtents, Told, UnitsToTell, told_of
from otel_recfn.batches.fold.units import Fold
from thoroughness import examples

pytestmark = pytest.mark.one_python

UNITS = [0, 1, 2, 3]
per_unit = st.lists(st.integers(-1, 6), min_size=len(UNITS), max_size=len(UNITS))
times = st.lists(st.integers(0, 80), min_size=len(UNITS), max_size=len(UNITS))


def finished(rows: list[Row], budget: int) -> tuple[FinishedUnits, KeptExtents]:
    fold = Fold(budget, 0)
    fold.add_planned(planned(rows), 0)
    done = fold.finish(UNITS, [budget] * len(UNITS), [0] * len(UNITS), [False] * len(UNITS))
    kept = [rows[place] for place in done.kept_row.tolist()]
    start_ns = np.array([row.start_ns for row in kept], np.int64)
    return done, KeptExtents(start_ns, start_ns + np.array([row.duration_ns for row in kept], np.int64))


def same(one: Told, other: Told) -> None:
    for name, mine, theirs in zip(Told._fields, one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs, name)
        assert mine.dtype == theirs.dtype


@examples(60)
@given(rows=threads(), kept=st.integers(0, 6), budget=per_unit, least=per_unit, first=times, longest=times, tells=per_unit)
def test_it_tells_what_the_model_tells(
    rows: list[Row], kept: int, budget: list[int], least: list[int], first: list[int], longest: list[int], tells: list[int]
) -> None:
    done, extents = finished(rows, kept)
    start_ns, end_ns = np.array(first, np.int64), np.array(first, np.int64) + np.array(longest, np.int64)
    tells_itself = np.array([one > 0 for one in tells], np.uint8)
    units = UnitsToTell(start_ns, end_ns, np.array(budget, np.int64), np.array(least, np.int64), tells_itself)
    told = told_of_model(done, extents, units)
    same(told_of(done, extents, units), told)
    assert told.ranges.sum() == done.path_count.sum()
    assert (told.end_ns >= told.start_ns).all()


@examples(20)
@given(rows=threads(), kept=st.integers(0, 6), budget=per_unit)
def test_it_tells_what_the_model_tells_of_sums_of_more_than_64_bits(rows: list[Row], kept: int, budget: list[int]) -> None:
    done, extents = finished([replace(row, duration_ns=1 << 62) for row in rows], kept)
    start_ns = np.zeros(len(UNITS), np.int64)
    units = UnitsToTell(start_ns, start_ns + 80, np.array(budget, np.int64), start_ns, np.zeros(len(UNITS), np.uint8))
    told = told_of_model(done, extents, units)
    same(told_of(done, extents, units), told)
    assert (told.end_ns >= told.start_ns).all()


@pytest.mark.parametrize("field", ["path_unit", "path_holder", "path_above"])
def test_a_path_that_indexes_nothing_is_refused(field: str) -> None:
    done, extents = finished([Row(1 << 40 | 1, 0, 1, 0, 5)], 0)
    none = np.zeros(0, np.int64)
    units = UnitsToTell(*[np.zeros(len(UNITS), np.int64)] * 4, np.zeros(len(UNITS), np.uint8))
    with pytest.raises(IndexError):
        told_of(done._replace(**{field: np.array([9])}), extents, units)
    with pytest.raises(ValueError, match="different lengths"):
        told_of(done, KeptExtents(none, np.zeros(1, np.int64)), units)
