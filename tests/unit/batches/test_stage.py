"""The stage decides what the model decides, of any batches and in any parts, and refuses what it can't read."""

from __future__ import annotations

import random
import resource
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fold_programs import Row, batch_of, threads
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

from batches import context, make_batch
from example_counts import examples
from models.folding import LINKABLE, MAX_AWAITED
from models.staging import Model
from otel_recfn.batches import stage as stage_module
from otel_recfn.batches.selection import announced
from otel_recfn.batches.stage import MOST_WAITING, Decided, Stage, UnitToDecide
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import NO_CONTEXT, SpanContextRef
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, RowKind, make_event_id

pytestmark = pytest.mark.one_python

IDS = [
    0,
    *[make_event_id(thread, number) for thread in (1, 2) for number in range(1, 21)],
    (1 << 64) - 1,
]
TIMES = [-9, 0, 1, 2, 3, 3, 1000, 1 << 56, (1 << 61) - 1, 1 << 61, 1 << 62]
CONTEXTS = [
    NO_CONTEXT,
    *[SpanContextRef(of, of + 7, flags) for of, flags in enumerate((0, 1, 1, 2, 3, 5, 7, 4), 1)],
]
any_row = st.builds(
    Row,
    event_id=st.sampled_from(IDS),
    parent=st.sampled_from(IDS),
    name=st.integers(0, 8),
    start_ns=st.integers(-5, 5),
    duration_ns=st.sampled_from(TIMES),
    flags=st.sampled_from(
        [
            0,
            0,
            0,
            int(EventFlag.ASYNC),
            int(EventFlag.SHOWN),
            int(EventFlag.ERROR),
            LINKABLE,
            int(EventFlag.IN_COMPILATION),
        ]
    ),
    unit=st.integers(0, 2),
    cpu_time_ns=st.sampled_from([-1, 0, 5, (1 << 63) - 1]),
)
"""Also such as no program has: ranges that lie in themselves or in each other."""


def cut(rows: Sequence[Row], cuts: Sequence[int]) -> list[Batch]:
    edges = [0, *sorted(place for place in cuts if place < len(rows)), len(rows)]
    return [batch_of(rows[first:last]) for first, last in pairwise(edges)]


any_rows = st.lists(any_row, max_size=40, unique_by=lambda row: row.event_id) | threads()
folded_batches = st.builds(cut, any_rows, st.lists(st.integers(0, 60), max_size=4))

any_columns = st.fixed_dictionaries(
    {
        "event_id": st.sampled_from([*range(1, 20), 1 << 40, (1 << 63) + 5]),
        "name": st.sampled_from(
            ["a", "b", "autograd::engine::evaluate_function: a", "nn.Module: A_0", "nn.Module: A_1"]
        ),
        "module": st.sampled_from(["", "layers.0", "layers.1"]),
        "kind": st.sampled_from([*RowKind, RowKind.RANGE, RowKind.RANGE]),
        "source": st.sampled_from([EventSource.TORCH, EventSource.STEP, EventSource.MODULE]),
        "scope": st.sampled_from([RecordScope.FUNCTION, RecordScope.BACKWARD_FUNCTION]),
        "parent": st.sampled_from([0, 1, 2, 3, 1 << 40]),
        "root": st.sampled_from([0, 1, 2, 3, 1 << 40]),
        "context": st.sampled_from(CONTEXTS),
        "start_ns": st.integers(-5, 5),
        "end_ns": st.integers(-5, 50),
        "flags": st.sampled_from(
            [
                0,
                int(EventFlag.ERROR),
                int(EventFlag.ASYNC | EventFlag.ERROR),
                int(EventFlag.PARTIAL),
            ]
        ),
        "cpu_time_ns": st.sampled_from([-1, 0, 5, (1 << 63) - 1]),
        "sequence_nr": st.integers(-1, 2),
        "forward_thread_id": st.integers(0, 1),
    }
)


@st.composite
def planned_batches(draw: st.DrawFn) -> list[Batch]:
    """Rows of every fate, some of them announced, in batches."""
    batches, came = [], set[int]()
    for drawn in draw(
        st.lists(st.lists(any_columns, min_size=1, max_size=20), min_size=1, max_size=4)
    ):
        rows = [
            row
            for row in {row["event_id"]: row for row in drawn}.values()
            if row["event_id"] not in came
        ]
        came |= {row["event_id"] for row in rows}
        if not rows:
            continue
        tree = {
            name: np.array([row[name] for row in rows], np.uint64) for name in ("parent", "root")
        }
        batch = replace(
            make_batch([{name: row[name] for name in row if name not in tree} for row in rows]),
            **tree,
        )
        opened = announced(
            batch, np.array(draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)), np.int64)
        )
        batches.append(
            replace(batch, opened=opened, closed=draw(st.sampled_from([-1, -1, len(rows) - 1])))
        )
    return batches


settings = st.tuples(st.integers(-1, 9), st.sampled_from([MOST_WAITING, 0, 1, 2, 5]))
roots_of = st.sets(st.sampled_from([0, 1, 2, 3, 1 << 40])).map(
    lambda ids: {one: SpanContext(9, one + 1, False) for one in ids}
)


class Play:
    """The same calls for a stage and the model, and what each gave."""

    def __init__(self, how: tuple[int, int]) -> None:
        self.stage, self.model = Stage(*how), Model(how)
        self.units: dict[tuple[int, int], SpanContext] = {}

    def add(self, batch: Batch, roots: dict[int, SpanContext]) -> None:
        added = self.stage.add(batch, roots)
        assert added == self.model.add(batch, roots)
        self.units.update(
            {(one.above.trace_id, one.above.span_id): one.above for one in added.units}
        )

    def decide(self, budgets: Sequence[tuple[int, int, bool, bool]], *, last: bool = False) -> None:
        """Of the first units: budget, length, whether it goes on, whether it tells itself."""
        drawn = [*budgets, *[(4, 80, False, False)] * len(self.units)] if last else budgets
        units = [
            UnitToDecide(above, budget, 3, 3 + length, goes_on and not last, tells)
            for above, (budget, length, goes_on, tells) in zip(
                list(self.units.values()), drawn, strict=False
            )
        ]
        rows = len(self.model.rows)
        self.compare(self.stage.decide(units, rows), *self.model.decide(units))
        for one in units:
            if not one.goes_on:
                del self.units[one.above.trace_id, one.above.span_id]

    def compare(
        self, one: Decided, kept: list[tuple[Any, ...]], told: Any, summaries: list[tuple[Any, ...]]
    ) -> None:
        plan, spans = one.plan, one.plan.spans_above
        links = [
            (span_id, spans[above].trace_id if span_id else 0)
            for span_id, above in zip(
                plan.linked_id.tolist(), plan.linked_above.tolist(), strict=True
            )
        ]
        rows = zip(
            plan.batch.events(), plan.parent.tolist(), plan.above.tolist(), links, strict=True
        )
        assert list(rows) == kept
        names = ("unit", "span", "of_unit", "ranges", "duration_ns", "top_end")
        assert one.sums[[*names]].tolist() == list(
            zip(*[getattr(told, name).tolist() for name in names], strict=True)
        )
        columns = (
            told.top_count.tolist(),
            told.top_self_ns.tolist(),
            [self.model.names.values[at] for at in told.top_name.tolist()],
        )
        top = [(count, self_ns, one.names[name]) for count, self_ns, name in one.top.tolist()]
        assert top == list(zip(*columns, strict=True))
        assert self.told(one) == summaries

    @staticmethod
    def told(one: Decided) -> list[tuple[Any, ...]]:
        ids, times = (
            ("span_id", "parent_id", "unit", "name", "count"),
            ("total_ns", "shortest_ns", "longest_ns", "cpu_time_ns"),
        )
        extent = ("start_ns", "end_ns", "module", "row")
        found, single = [], iter(one.single.events())
        for row in one.summaries[[*ids, *times, *extent]].tolist():
            values, (module, number) = list(row[:-2]), row[-2:]
            values[3] = one.names[values[3]]
            of_row = (one.names[module] if module else "", next(single) if number >= 0 else None)
            found.append((*values, *of_row))
        return found


LENGTHS = st.sampled_from([0, 80, 3000, 9000, 1_001_000])
"""Of units: what is shorter than a thousandth of one is no span."""
parts = st.lists(
    st.lists(st.tuples(st.integers(-1, 12), LENGTHS, st.booleans(), st.booleans()), max_size=4),
    max_size=5,
)


def play(
    how: tuple[int, int],
    batches: Sequence[Batch],
    ends: Sequence[Any],
    roots: dict[int, SpanContext],
) -> Play:
    """Add the batches, decide some units after each, and all in the end."""
    game = Play(how)
    for place, batch in enumerate(batches):
        game.add(batch, roots)
        if place < len(ends):
            game.decide(ends[place])
    game.decide([], last=True)
    return game


@given(how=settings, batches=folded_batches, ends=parts)
def test_it_folds_as_the_model_does(
    how: tuple[int, int], batches: list[Batch], ends: list[Any]
) -> None:
    play(how, batches, ends, {})


@given(how=settings, batches=planned_batches(), ends=parts, roots=roots_of)
def test_it_plans_and_links_as_the_model_does(
    how: tuple[int, int], batches: list[Batch], ends: list[Any], roots: dict[int, SpanContext]
) -> None:
    play(how, batches, ends, roots)


@given(rows=any_rows, how=settings, time=st.sampled_from([1 << 61, (1 << 62) - 6, -(1 << 62)]))
def test_it_sums_up_as_the_model_does_what_has_many_bits(
    rows: list[Row], how: tuple[int, int], time: int
) -> None:
    play(how, [batch_of([replace(row, duration_ns=time) for row in rows])], [], {})


@examples(50)
@given(batches=planned_batches(), roots=roots_of)
def test_every_range_is_planned_as_the_model_plans(
    batches: list[Batch], roots: dict[int, SpanContext]
) -> None:
    stage = Stage(0)
    for batch in batches:
        plan, added = stage.plan(batch, roots)
        fates, units, rows = Model((0, 1)).plan(batch, roots)
        assert (added.fates, added.units) == (fates, units)
        told = zip(
            plan.batch.take(plan.row).events(),
            plan.parent.tolist(),
            plan.above.tolist(),
            strict=True,
        )
        found = [(event, parent, plan.spans_above[above].span_id) for event, parent, above in told]
        assert found == [(row.event, row.parent, row.above.span_id) for row in rows]


def test_a_backward_range_that_is_a_span_at_once_links_to_the_span_of_its_forward() -> None:
    stage, request = Stage(0), SpanContextRef(5, 6, 1)
    forward = {"event_id": 11, "sequence_nr": 3, "context": request}
    backward = {
        "sequence_nr": 3,
        "forward_thread_id": 1,
        "scope": RecordScope.BACKWARD_FUNCTION,
        "context": SpanContextRef(7, 8, 1),
    }
    first, _ = stage.plan(make_batch([forward]), {})
    plan, _ = stage.plan(make_batch([{**backward, "context": SpanContextRef(7, 8, 1)}]), {})
    assert plan.linked_id.tolist() == first.span_id.tolist()
    assert plan.spans_above[plan.linked_above[0]].trace_id == 5


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
            made.append(
                Row(event_id, parent, name, start, clock - start, flag, unit=thread * (seed % 2))
            )
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
def test_it_folds_long_programs_as_the_model_does(budget: int, names: int, kind: str) -> None:
    rows = long_program(budget, 12_000, names, MANY_FLAGS[kind])
    ends = [
        [(budget, 0, True, False), (budget // 2, 900_000, True, True)],
        [(budget, 80, True, False)],
    ]
    play((budget, MOST_WAITING), cut(rows, [3000, 9000]), ends, {})


@pytest.mark.parametrize("names", [5, 300])
def test_it_folds_durations_of_every_size_as_the_model_does(names: int) -> None:
    draw = random.Random(names)
    rows = [
        replace(row, duration_ns=draw.getrandbits(draw.randrange(50)))
        for row in long_program(0, 4000, names)
    ]
    ends = [[(20, 1 << 30, True, False)], [(0, 80, True, False)]]
    play((30, 50), cut(rows, [1000, 3000]), ends, {})


def test_it_folds_what_nests_deeper_than_the_stack_of_a_thread() -> None:
    deep = 30_000
    ids = [0, *[make_event_id(1, number) for number in range(1, deep + 1)]]
    rows = [Row(ids[number], ids[number - 1], 1, number, 9) for number in range(deep, 0, -1)]
    stage, told = Stage(3, 100), list[Decided]()

    def fold() -> None:
        for batch in cut(rows, [1000, 20_000]):
            [unit] = stage.add(batch, {}).units
        told.append(
            stage.decide(
                [UnitToDecide(unit.above, 2, 0, deep, goes_on=False, tells_itself=False)], deep
            )
        )

    size = threading.stack_size(256 << 10)
    thread = threading.Thread(target=fold)
    thread.start()
    threading.stack_size(size)
    thread.join()
    assert len(told[0].plan.row) + len(told[0].single) + told[0].sums["ranges"][-1] == deep


def test_it_forgets_the_models_self_times_where_they_are_too_many() -> None:
    count = MAX_AWAITED + 100
    rows = [
        Row(make_event_id(1, 2 * number), make_event_id(1, 2 * number - 1), 1, number, 5)
        for number in range(1, count)
    ]
    rows += [
        Row(make_event_id(1, 2 * number - 1), 0, 2, number, 9) for number in range(1, count, 7)
    ]
    play((9, MOST_WAITING), cut(rows, [count - 1]), [[(20, 80, True, False)]], {})


def test_names_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "MAX_NAMES", 3)
    stage = Stage(9)
    stage.add(make_batch([{"name": name, "context": CONTEXTS[2]} for name in "ab"]), {})
    assert not stage.has_many_names
    stage.add(make_batch([{"name": "c", "context": CONTEXTS[2]}]), {})
    assert stage.has_many_names
    stage.forget_names()
    assert not stage.has_many_names


OF_A_ROW = (
    *(
        "event_id",
        "parent",
        "root",
        "forward_thread_id",
        "start_ns",
        "end_ns",
        "sequence_nr",
        "name",
        "thread",
        "context",
    ),
    *("flags", "kind", "scope", "source"),
)
WRONG = [
    lambda column: column.astype(np.int16),
    lambda column: column.reshape(1, -1),
    lambda column: column.tolist(),
    lambda column: np.repeat(column, 2),
]


@pytest.mark.parametrize("name", OF_A_ROW)
@pytest.mark.parametrize("wrong", WRONG)
def test_columns_that_are_none_are_refused(name: str, wrong: Any) -> None:
    good, stage = make_batch([{"context": CONTEXTS[2]}]), Stage(3)
    with pytest.raises((TypeError, ValueError)):
        stage.add(replace(good, **{name: wrong(getattr(good, name))}), {})
    assert stage.add(good, {}).planned == 1


@pytest.mark.parametrize("name", ["context", "thread", "name"])
def test_rows_that_index_nothing_are_refused(name: str) -> None:
    good, stage = make_batch([{"context": CONTEXTS[2]}]), Stage(3)
    with pytest.raises(IndexError):
        stage.add(replace(good, **{name: np.array([99], np.uint32)}), {})
    assert stage.add(good, {}).planned == 1


def test_columns_with_steps_are_read() -> None:
    rows = [Row(make_event_id(1, number), 0, 1, number, number) for number in range(1, 9)]
    stage = Stage(9)
    stage.add(batch_of(rows).take(slice(None, None, -2)), {})
    [unit] = stage.add(batch_of(rows[:1]), {}).units
    done = stage.decide([UnitToDecide(unit.above, 9, 0, 9, goes_on=False, tells_itself=False)], 5)
    assert sorted(done.plan.batch.event_id.tolist()) == sorted(
        [row.event_id for row in rows[1::2]] + [rows[0].event_id]
    )


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="how much memory a process has is read as Linux tells it",
)
def test_what_units_needed_is_used_again() -> None:
    batch = batch_of(long_program(0, 8000, 1000, (0, 0, LINKABLE, int(EventFlag.ASYNC))))
    stage, sizes = Stage(200), []
    for _ in range(120):
        for goes_on in (True, False):
            [unit] = stage.add(batch, {}).units
            stage.decide([UnitToDecide(unit.above, 100, 0, 9, goes_on, tells_itself=False)], 8000)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    assert sizes[-1] - sizes[20] < 4 << 20


def test_few_more_than_the_budget_are_held() -> None:
    stage = Stage(20)
    stage.add(
        batch_of(
            [Row(make_event_id(1, number), 0, 1, number, number) for number in range(1, 9000)]
        ),
        {},
    )
    assert len(stage._kept()) <= 20 + MOST_WAITING


def test_a_part_has_the_same_rows_of_every_column() -> None:
    plan, _ = Stage(0).plan(
        make_batch([{"context": context(5, 7 + number % 2)} for number in range(10)]), {}
    )
    part: dict[str, Any] = plan.part(slice(3, 7))._asdict()
    for name, whole in plan._asdict().items():
        if name in ("batch", "spans_above", "torch_names"):
            assert part[name] is whole
        else:
            assert np.array_equal(part[name], whole[3:7]), name
