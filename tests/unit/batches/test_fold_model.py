"""Folding gives the columns of the model for any rows, however these come, and refuses what it can't read."""

from __future__ import annotations

import random
import resource
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fold_programs import AnyFold, Row, planned, same, threads
from hypothesis import given
from hypothesis import strategies as st

from models.folding import LINKABLE, MAX_AWAITED, FoldModel
from otel_recfn.batches.fold.units import MOST_WAITING, Fold, PlannedRanges
from otel_recfn.model.events import EventFlag, make_event_id

pytestmark = pytest.mark.one_python

IDS = [0, *[make_event_id(thread, number) for thread in (1, 2) for number in range(1, 9)], (1 << 64) - 1]
FLAGS = [0, 0, 0, int(EventFlag.ASYNC), int(EventFlag.SHOWN), int(EventFlag.ERROR), LINKABLE]
TIMES = [-9, 0, 1, 2, 3, 3, 1000, 1 << 56, (1 << 61) - 1, 1 << 61, 1 << 62]
any_row = st.builds(
    Row,
    event_id=st.sampled_from(IDS),
    parent=st.sampled_from(IDS),
    name=st.integers(0, 4),
    start_ns=st.integers(-5, 5),
    duration_ns=st.sampled_from(TIMES),
    flags=st.sampled_from(FLAGS),
    unit=st.integers(0, 2),
)
"""Also such as no program has: ranges that come twice, that lie in themselves or in each other."""
FAR_IDS = [make_event_id(thread, ordinal) for thread in (1, 2) for ordinal in (1, 9, 1 << 20, 1 << 39)]
OF_MANY_THREADS = [make_event_id(thread, ordinal) for thread in range(1, 13) for ordinal in (1, 2)]


@st.composite
def scattered(draw: st.DrawFn) -> list[Row]:
    """Ranges whose ids lie far from each other, or are of many threads."""
    rows = draw(st.lists(any_row, max_size=40))
    ids = st.sampled_from(draw(st.sampled_from([FAR_IDS, OF_MANY_THREADS])))
    return [replace(row, event_id=draw(ids), parent=draw(ids)) for row in rows]


any_rows = st.lists(any_row, max_size=40) | scattered() | threads()
settings = st.tuples(
    st.integers(-1, 9),
    st.sampled_from([-5, 0, 2, 5]),
    st.sampled_from([MOST_WAITING, 0, 1, 2, 5]),
)
budgets = st.integers(-1, 12)
End = tuple[list[int], list[int], list[int], list[bool]]
"""What is asked of a fold: units, their budgets, their least durations, whether they go on."""


def play(
    fold: AnyFold,
    rows: Sequence[Row],
    cuts: Sequence[int],
    ends: Sequence[End],
) -> list[object]:
    """Add the rows in pieces, finish some units after each, and all in the end. What each call gave."""
    came: list[object] = []
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for place, (first, last) in enumerate(pairwise(edges)):
        fold.add_planned(planned(rows[first:last]), 1000 * place + first)
        came += [fold.kept(), fold.rows([0, 1, 2, 3])]
        came += [fold.finish(*end) for end in ends[place : place + 1]]
    return [*came, fold.finish([3, 2, 0, 1], [4, 4, 4, 4], [0, 1, 2, 3], [False] * 4), fold.kept()]


@st.composite
def ends_of_units(draw: st.DrawFn) -> End:
    units = draw(st.lists(st.integers(0, 3), unique=True, max_size=3))
    size = len(units)
    goes_on = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    least_ns = draw(st.lists(st.sampled_from([-3, 0, 1, 3, 9, 1001]), min_size=size, max_size=size))
    return units, draw(st.lists(budgets, min_size=size, max_size=size)), least_ns, goes_on


def compare(one: Sequence[object], other: Sequence[object]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        if hasattr(mine, "path_name"):
            same(mine, theirs)
        else:
            np.testing.assert_array_equal(mine, theirs)


@given(rows=any_rows, how=settings, cuts=st.lists(st.integers(0, 60), max_size=4), ends=st.lists(ends_of_units(), max_size=5))
def test_it_gives_what_the_model_gives(rows: list[Row], how: tuple[int, int, int], cuts: list[int], ends: list[End]) -> None:
    compare(play(Fold(*how), rows, cuts, ends), play(FoldModel(*how), rows, cuts, ends))


@given(rows=any_rows, how=settings, time=st.sampled_from([1 << 61, 1 << 62, -(1 << 62)]))
def test_it_gives_what_the_model_gives_for_sums_of_many_bits(rows: list[Row], how: tuple[int, int, int], time: int) -> None:
    long = [replace(row, duration_ns=time) for row in rows]
    compare(play(Fold(*how), long, [], []), play(FoldModel(*how), long, [], []))


def long_program(seed: int, rows: int, names: int, flags: Sequence[int] = (0,)) -> list[Row]:
    """Ranges of two threads, at most eight deep."""
    draw, made = random.Random(seed), []
    stacks: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
    begun, clock = dict.fromkeys(stacks, 0), 0
    while len(made) < rows:
        thread, clock = 1 + int(2 * draw.random()), clock + 1 + int(999 * draw.random())
        stack = stacks[thread]
        if stack and (len(stack) == 8 or draw.random() < 0.5):
            event_id, start = stack.pop()
            parent = stack[-1][0] if stack else 0
            name = min(int(draw.paretovariate(0.5)), names)
            flag = flags[int(len(flags) * draw.random())]
            made.append(Row(event_id, parent, name, start, clock - start, flag, unit=thread * (seed % 2)))
        else:
            begun[thread] += 1
            stack.append((make_event_id(thread, begun[thread]), clock))
    return made


MANY_FLAGS = {
    "plain": (0,),
    "async": (0,) * 9 + (int(EventFlag.ASYNC),),
    "linkable": (0, LINKABLE, 0, 0),
    "failed": (0,) * 9 + (int(EventFlag.ERROR),),
}


@pytest.mark.parametrize("budget", [0, 3, 200])
@pytest.mark.parametrize("names", [5, 100_000])
@pytest.mark.parametrize("kind", MANY_FLAGS)
def test_it_gives_what_the_model_gives_for_long_programs(budget: int, names: int, kind: str) -> None:
    rows = long_program(budget, 12_000, names, MANY_FLAGS[kind])
    ends = [([0, 1], [budget, budget // 2], [0, 900], [True, True]), ([2], [budget], [0], [True])]
    of_the_model = play(FoldModel(budget, 0), rows, [3000, 9000], ends)
    compare(play(Fold(budget, 0), rows, [3000, 9000], ends), of_the_model)
    assert names == 5 or 0 in of_the_model[-2].path_name, "no path was left for some"


@pytest.mark.parametrize("names", [5, 300])
def test_it_gives_what_the_model_gives_for_durations_of_every_size(names: int) -> None:
    draw = random.Random(names)
    rows = [replace(row, duration_ns=draw.getrandbits(draw.randrange(50))) for row in long_program(0, 4000, names)]
    ends = [([0], [20], [1 << 20], [True]), ([0], [0], [0], [True])]
    how = 30, 0, 50
    compare(play(Fold(*how), rows, [1000, 3000], ends), play(FoldModel(*how), rows, [1000, 3000], ends))


def test_it_forgets_the_models_self_times_where_they_are_too_many() -> None:
    count = MAX_AWAITED + 100
    rows = [Row(make_event_id(1, 2 * number), make_event_id(1, 2 * number - 1), 1, number, 5) for number in range(1, count)]
    rows += [Row(make_event_id(1, 2 * number - 1), 0, 2, number, 9) for number in range(1, count, 7)]
    ends, cuts = [([0], [20], [0], [True])], [count - 1]
    compare(play(Fold(9, 0), rows, cuts, ends), play(FoldModel(9, 0), rows, cuts, ends))


def test_a_unit_may_be_named_once() -> None:
    with pytest.raises(ValueError, match="named twice"):
        Fold(3, 0).finish([1, 1], [3, 3], [0, 0], [False, False])


def good() -> PlannedRanges:
    return planned([Row(make_event_id(1, 1), 0, 1, 2, 3)])


@pytest.mark.parametrize("number", [None, "1", 1.5])
def test_what_is_no_number_is_refused(number: Any) -> None:
    fold = Fold(3, 0)
    with pytest.raises(TypeError):
        fold.add_planned(good(), number)
    assert fold.rows([0]) == [0]


OF_A_ROW = ("row", "parent", "above", "event_id", "start_ns", "end_ns", "sequence_nr", "flags", "scope")
"""Columns with one value for each range, or each row of the batch."""


def replaced(ranges: PlannedRanges, name: str, change: Callable[[np.ndarray], Any]) -> PlannedRanges:
    """With another column of that name, of the batch's if it has one."""
    if name in ranges._fields:
        return ranges._replace(**{name: change(getattr(ranges, name))})
    return ranges._replace(batch=SimpleNamespace(**{**vars(ranges.batch), name: change(getattr(ranges.batch, name))}))


@pytest.mark.parametrize("name", [*OF_A_ROW, "unit", "name", "shown"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda column: column.astype(np.float64),
        lambda column: column.astype(np.int16),
        lambda column: column.astype(
            np.int32 if column.dtype == np.uint32 else np.uint64 if column.dtype == np.int64 else np.int64
        ),
        lambda column: column.reshape(1, -1),
        lambda column: column.tolist(),
        lambda column: None,
    ],
)
def test_columns_that_are_none_are_refused(name: str, wrong: Callable[[np.ndarray], Any]) -> None:
    fold = Fold(3, 0)
    with pytest.raises((TypeError, ValueError)):
        fold.add_planned(replaced(good(), name, wrong), 0)
    assert fold.rows([0]) == [0]
    fold.add_planned(good(), 0)
    assert fold.rows([0]) == [1]


@pytest.mark.parametrize("name", OF_A_ROW)
def test_columns_of_other_lengths_are_refused(name: str) -> None:
    fold = Fold(3, 0)
    with pytest.raises(ValueError, match="equally long"):
        fold.add_planned(replaced(good(), name, lambda column: np.repeat(column, 2)), 0)
    assert fold.rows([0]) == [0]


def test_columns_with_steps_are_read() -> None:
    rows = [Row(make_event_id(1, number), 0, 1, number, number) for number in range(1, 9)]
    fold, ranges = Fold(9, 0), planned(rows)
    every_second = {name: getattr(ranges, name)[::-2] for name in ("row", "parent", "above")}
    fold.add_planned(ranges._replace(**every_second), 0)
    assert sorted(fold.finish([0], [9], [0], [False]).kept.tolist()) == [row.event_id for row in rows[1::2]]


@pytest.mark.parametrize(
    "arguments",
    [
        ([0], [1], [0], []),
        ([0], [1], [], [True]),
        ([0], [], [0], [True]),
        ([], [1], [0], [True]),
        ([-1], [1], [0], [True]),
        ([1 << 32], [1], [0], [True]),
        (["0"], [1], [0], [True]),
        ([0], [1.5], [0], [True]),
        ([0], [None], [0], [True]),
        ([0], [1], ["0"], [True]),
        (7, 7, 7, 7),
        (None, None, None, None),
    ],
)
def test_what_are_no_units_are_refused(arguments: tuple[object, ...]) -> None:
    fold = Fold(3, 0)
    fold.add_planned(good(), 0)
    with pytest.raises((TypeError, ValueError)):
        fold.finish(*arguments)
    assert fold.finish([0], [1 << 70], [-(1 << 70)], [False]).kept.tolist() == [make_event_id(1, 1)]


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, "3"), (1.5, 2, 3), (None, None)])
def test_what_is_no_setting_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        Fold(*arguments)


def test_threads_that_use_one_fold_at_once_get_an_error_and_no_crash() -> None:
    fold, rows = Fold(1000, 0), planned(long_program(2, 10_000, 50))
    refused, added = [], []

    def add() -> None:
        for _ in range(20):
            try:
                fold.add_planned(rows, 0)
                added.append(10_000)
            except RuntimeError as error:
                refused.append(str(error))

    busy = [threading.Thread(target=add) for _ in range(4)]
    for thread in busy:
        thread.start()
    for thread in busy:
        thread.join()
    assert sum(added) + 10_000 * len(refused) == 80 * 10_000
    assert sum(fold.rows([0])) == sum(added) > 0
    assert all("one thread at a time" in text for text in refused)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how much memory a process has is read as Linux tells it")
def test_what_units_needed_is_used_again() -> None:
    rows = planned(long_program(0, 8000, 100_000, (0, 0, LINKABLE, int(EventFlag.ASYNC))))
    fold, sizes = Fold(200, 0), []
    for _ in range(120):
        for goes_on in (True, False):
            fold.add_planned(rows, 0)
            fold.finish([0], [100], [0], [goes_on])
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    assert sizes[-1] - sizes[20] < 4 << 20
