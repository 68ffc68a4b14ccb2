"""Whatever comes to the stage, in any batches and any parts, is counted once and sent below what
was sent before; and it refuses what it can't read.

Which ranges are kept: ``test_fold_laws.py``.
"""

from __future__ import annotations

import random
import resource
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fold_programs import LINKABLE, NODE, SPAN, Row, batch_of, threads
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

from helpers.batches import context, make_batch
from helpers.example_counts import examples
from otel_recfn.batches.outcomes import Outcome
from otel_recfn.batches.selection import opened_columns
from otel_recfn.batches.stage import MAX_WAITING, Decided, OwnRoot, Stage
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import NO_CONTEXT, SpanContextRef
from otel_recfn.model.events import (
    ContextFlag,
    EventFlag,
    EventSource,
    RecordScope,
    RowKind,
    make_event_id,
)
from otel_recfn.support.span_ids import span_ids

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
SAMPLED = int(ContextFlag.SAMPLED)
SUPPRESSED = int(ContextFlag.SUPPRESSED)
STEP = int(ContextFlag.STEP)
FLAGS = (
    EventFlag.ASYNC,
    EventFlag.EXPOSED,
    EventFlag.ERROR,
    EventFlag.IN_COMPILATION,
    EventFlag.PARTIAL,
)
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
            LINKABLE,
            NODE,
            NODE,
            NODE | int(EventFlag.EXPOSED),
            NODE | int(EventFlag.ERROR),
            *map(int, FLAGS),
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
    batches = []
    came = set[int]()
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
        opened = opened_columns(
            batch, np.array(draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)), np.int64)
        )
        batches.append(
            replace(batch, opened=opened, closed=draw(st.sampled_from([-1, -1, len(rows) - 1])))
        )
    return batches


settings = st.tuples(st.integers(-1, 9), st.sampled_from([MAX_WAITING, 0, 1, 2, 5]))
roots_of = st.sets(st.sampled_from([0, 1, 2, 3, 1 << 40])).map(
    lambda ids: {one: SpanContext(9, one + 1, False) for one in ids}
)


def own_roots(roots: dict[int, SpanContext]) -> list[OwnRoot]:
    """Each above one outermost range."""
    return [OwnRoot(one, one + 1, roots[one]) for one in sorted(roots)]


class Play:
    """A stage, what it was given and what came of that; and what holds of it, whatever came."""

    def __init__(self, how: tuple[int, int]) -> None:
        self.stage = Stage(*how)
        self.units: dict[int, SpanContext] = {}
        """The spans above open units, by the units' numbers."""
        self.parent_span_ids: set[int] = set()
        """The ids of spans above units, open or not."""
        self.rows: Counter[int] = Counter()
        """The rows of each open unit that wait or are folded."""
        self.open: set[int] = set()
        """Outermost ranges that were announced: while they are open, parts are sent below them."""
        self.sent: set[int] = set()
        """Ids of spans."""

    def add(self, batch: Batch, roots: dict[int, SpanContext]) -> None:
        self.open |= {one.event_id for one in batch.opened}
        before = {one.unit: one.rows for one in self.stage.units()}
        added = self.stage.add(batch, own_roots(roots))
        assert sum(added.outcomes) == len(batch)
        self.units.update(added.new_units)
        self.parent_span_ids |= {span.span_id for span in added.new_units.values()}
        assert [one.unit for one in self.stage.units()] == list(self.units)
        assert [self.stage.find(span) for span in self.units.values()] == list(self.units)
        for one in self.stage.units():
            self.rows[one.unit] += one.rows - before.get(one.unit, 0)
        assert sum(one.rows for one in self.stage.units()) - sum(before.values()) == added.planned

    def decide(self, ends: Sequence[tuple[int, int, bool, bool]], *, last: bool = False) -> None:
        """Of the first units: budget, the length of its span (0: it goes on), whether the unit
        goes on, who takes its sums.
        """
        drawn = [*ends, *[(4, 80, False, False)] * len(self.units)] if last else ends
        whole = list[tuple[int, int]]()
        parts = list[tuple[int, int]]()
        for unit, (budget, length, goes_on, takes_sums) in zip(
            list(self.units), drawn, strict=False
        ):
            is_partial = goes_on and not last
            if length:
                self.stage.end_span(
                    unit, ended_by_ns=5, start_ns=3, end_ns=3 + length, failed=False
                )
            if takes_sums and not is_partial:
                self.stage.finish(unit, takes_sums=True)
            (parts if is_partial else whole).append((unit, budget))
        for grants, is_partial in ((parts, True), (whole, False)):
            if grants:
                self.check(grants, is_partial)

    def check(self, grants: Sequence[tuple[int, int]], is_partial: bool) -> None:
        """Of units that are decided, each row is a span or in a sum, but for backward nodes in
        a part, which wait for the ranges around them.
        """
        units = [unit for unit, _ in grants]
        one = self.stage.decide(grants, [self.units[unit] for unit in units], is_partial=is_partial)
        counts = Counter(units[at] for at in one.plan.parent_span.tolist())
        for each in one.sums[one.sums["is_whole_unit"] != 0]:
            counts[units[each["unit"]]] += int(each["ranges"])
        for unit in units:
            assert counts[unit] <= self.rows[unit]
            self.rows[unit] -= counts[unit]
            if not is_partial:
                assert self.rows.pop(unit) == 0
        self.check_parents(one)
        self.check_links(one)
        for unit in [] if is_partial else units:
            del self.units[unit]
        assert [each.unit for each in self.stage.units()] == list(self.units)

    def check_parents(self, one: Decided) -> None:
        """Each span has an id of its own, and comes after its parent, or after a span that
        waits for its own end: an outermost range that is open.
        """
        open_ids = {*span_ids(np.array([*self.open], np.uint64)).tolist()}
        spans = [
            *zip(one.plan.span_id.tolist(), one.plan.parent_id.tolist(), strict=True),
            *one.summaries[["span_id", "parent_id"]].tolist(),
        ]
        for span_id, parent_id in spans:
            assert span_id not in self.sent
            assert parent_id in self.sent | self.parent_span_ids or parent_id in open_ids
            self.sent.add(span_id)

    def check_links(self, one: Decided) -> None:
        """A link leads to a span that was sent or is above a unit, but none to the own parent."""
        plan = one.plan
        links = zip(plan.linked_id.tolist(), plan.parent_id.tolist(), strict=True)
        for linked_id, parent_id in [link for link in links if link[0]]:
            assert linked_id in self.sent or linked_id in self.parent_span_ids
            assert linked_id != parent_id


ABOVE = SpanContext(1, SPAN, False)
"""The span above the first unit of ``batch_of``."""
LENGTHS = st.sampled_from([0, 80, 3000, 9000, 1_001_000])
"""Of spans of units: what is shorter than a thousandth of one is no span."""
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
def test_whatever_comes_is_counted_once_and_below_what_was_sent(
    how: tuple[int, int], batches: list[Batch], ends: list[Any]
) -> None:
    play(how, batches, ends, {})


@given(how=settings, batches=planned_batches(), ends=parts, roots=roots_of)
def test_rows_of_every_fate_are_counted_once_and_below_what_was_sent(
    how: tuple[int, int], batches: list[Batch], ends: list[Any], roots: dict[int, SpanContext]
) -> None:
    play(how, batches, ends, roots)


@given(rows=any_rows, how=settings, time=st.sampled_from([1 << 61, (1 << 62) - 6, -(1 << 62)]))
def test_ranges_of_any_length_are_counted_once(
    rows: list[Row], how: tuple[int, int], time: int
) -> None:
    play(how, [batch_of([replace(row, duration_ns=time) for row in rows])], [], {})


FATES = {
    "a range in a span": ({}, Outcome.IN_SPAN),
    "a mark": ({"kind": RowKind.MARK}, Outcome.OTHER_KIND),
    "memory": ({"kind": RowKind.MEMORY}, Outcome.OTHER_KIND),
    "a step, which has a span": (
        {"source": EventSource.STEP, "context": SpanContextRef(5, 6, SAMPLED | STEP)},
        Outcome.OTHER_KIND,
    ),
    "a step without one": ({"source": EventSource.STEP}, Outcome.IN_SPAN),
    "not sampled": ({"context": SpanContextRef(5, 6, 0)}, Outcome.UNSAMPLED),
    "suppressed": ({"context": SpanContextRef(5, 6, SAMPLED | SUPPRESSED)}, Outcome.SUPPRESSED),
    "in a trace of ours": ({"context": NO_CONTEXT, "event_id": 1}, Outcome.ROOTLESS),
    "in none": ({"context": NO_CONTEXT, "event_id": 2}, Outcome.UNSAMPLED),
}


@pytest.mark.parametrize(("columns", "outcome"), FATES.values(), ids=FATES)
def test_a_row_becomes_a_span_or_not(columns: dict[str, Any], outcome: Outcome) -> None:
    batch = make_batch([{"event_id": 7, "context": SpanContextRef(5, 6, SAMPLED), **columns}])
    root = SpanContext(9, 10, False)
    plan, added = Stage(0).plan(batch, own_roots({1: root}))
    assert [Outcome(fate) for fate, count in enumerate(added.outcomes) if count] == [outcome]
    is_span = outcome >= Outcome.IN_SPAN
    assert (len(plan.row), added.planned) == (is_span, is_span)
    if is_span:
        above = plan.parent_spans[plan.parent_span[0]]
        assert above.span_id == (root.span_id if outcome == Outcome.ROOTLESS else 6)


@examples(50)
@given(batches=planned_batches(), roots=roots_of)
def test_every_range_is_planned_where_its_row_says(
    batches: list[Batch], roots: dict[int, SpanContext]
) -> None:
    """Below the range around it in the same span, or else below that span, or the root of ours
    above its outermost range.
    """
    stage = Stage(0)
    for batch in batches:
        plan, added = stage.plan(batch, own_roots(roots))
        assert sum(added.outcomes) == len(batch)
        events = batch.take(plan.row).events()
        fields = zip(events, plan.parent.tolist(), plan.parent_span.tolist(), strict=True)
        for event, parent, above in fields:
            around = 0 if event.root == event.event_id else event.parent
            in_step = event.context.flags & STEP and event.parent == event.root
            assert parent == (0 if in_step else around)
            root = roots.get(event.root) if event.context.trace_id == 0 else None
            span_id = root.span_id if root is not None else event.context.span_id
            assert plan.parent_spans[above].span_id == span_id


def test_a_backward_range_that_is_a_span_at_once_links_to_the_span_of_its_forward() -> None:
    stage = Stage(0)
    request = SpanContextRef(5, 6, 1)
    forward = {"event_id": 11, "sequence_nr": 3, "context": request}
    backward = {
        "sequence_nr": 3,
        "forward_thread_id": 1,
        "scope": RecordScope.BACKWARD_FUNCTION,
        "context": SpanContextRef(7, 8, 1),
    }
    first, _ = stage.plan(make_batch([forward]))
    plan, _ = stage.plan(make_batch([{**backward, "context": SpanContextRef(7, 8, 1)}]))
    assert plan.linked_id.tolist() == first.span_id.tolist()
    assert plan.parent_spans[plan.linked_span[0]].trace_id == 5


def long_program(seed: int, rows: int, names: int, flags: Sequence[int] = (0,)) -> list[Row]:
    """Ranges of two threads, at most eight deep."""
    draw = random.Random(seed)
    made = []
    stacks: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
    begun = dict.fromkeys(stacks, 0)
    clock = 0
    while len(made) < rows:
        thread = 1 + int(2 * draw.random())
        clock = clock + 1 + int(999 * draw.random())
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
def test_long_programs_are_counted_once(budget: int, names: int, kind: str) -> None:
    rows = long_program(budget, 6000, names, MANY_FLAGS[kind])
    ends = [
        [(budget, 0, True, False), (budget // 2, 900_000, True, True)],
        [(budget, 80, True, False)],
    ]
    play((budget, MAX_WAITING), cut(rows, [1500, 4500]), ends, {})


@pytest.mark.parametrize("names", [5, 300])
def test_durations_of_every_size_are_counted_once(names: int) -> None:
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
    stage = Stage(3, 100)
    decisions = list[Decided]()

    def fold() -> None:
        for batch in cut(rows, [1000, 20_000]):
            stage.add(batch)
        (unit,) = stage.units()
        decisions.append(stage.decide([(unit.unit, 2)], [ABOVE], is_partial=False))

    size = threading.stack_size(256 << 10)
    thread = threading.Thread(target=fold)
    thread.start()
    threading.stack_size(size)
    thread.join()
    assert len(decisions[0].plan.row) + decisions[0].sums["ranges"][-1] == deep


def test_ranges_that_come_after_very_many_parts_of_them_are_counted_once() -> None:
    """The stage remembers the times of what was handed on before the range around it for some
    65,000 ranges.
    """
    count = (1 << 16) + 100
    rows = [
        Row(make_event_id(1, 2 * number), make_event_id(1, 2 * number - 1), 1, number, 5)
        for number in range(1, count)
    ]
    rows += [
        Row(make_event_id(1, 2 * number - 1), 0, 2, number, 9) for number in range(1, count, 7)
    ]
    play((9, MAX_WAITING), cut(rows, [count - 1]), [[(20, 80, True, False)]], {})


def test_names_are_counted_until_they_are_forgotten() -> None:
    stage = Stage(9)
    assert (
        stage.add(make_batch([{"name": name, "context": CONTEXTS[2]} for name in "ab"])).names == 3
    )
    assert stage.add(make_batch([{"name": "c", "context": CONTEXTS[2]}])).names == 4
    stage.forget_names()
    assert stage.add(make_batch([{"name": "d", "context": CONTEXTS[2]}]), {}).names == 2


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
    good = make_batch([{"context": CONTEXTS[2]}])
    stage = Stage(3)
    with pytest.raises((TypeError, ValueError)):
        stage.add(replace(good, **{name: wrong(getattr(good, name))}), {})
    assert stage.add(good, {}).planned == 1


@pytest.mark.parametrize("name", ["context", "thread", "name"])
def test_rows_that_index_nothing_are_refused(name: str) -> None:
    good = make_batch([{"context": CONTEXTS[2]}])
    stage = Stage(3)
    with pytest.raises(IndexError):
        stage.add(replace(good, **{name: np.array([99], np.uint32)}), {})
    assert stage.add(good, {}).planned == 1


def test_columns_with_steps_are_read() -> None:
    rows = [Row(make_event_id(1, number), 0, 1, number, number) for number in range(1, 9)]
    stage = Stage(9)
    stage.add(batch_of(rows).take(slice(None, None, -2)), {})
    stage.add(batch_of(rows[:1]), {})
    (unit,) = stage.units()
    done = stage.decide([(unit.unit, 9)], [ABOVE], is_partial=False)
    assert sorted(done.plan.batch.event_id.tolist()) == sorted(
        [row.event_id for row in rows[1::2]] + [rows[0].event_id]
    )


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="how much memory a process has is read as Linux tells it",
)
def test_what_units_needed_is_used_again() -> None:
    batch = batch_of(long_program(0, 8000, 1000, (0, 0, LINKABLE, int(EventFlag.ASYNC))))
    stage = Stage(200)
    sizes = []
    for _ in range(120):
        for is_partial in (True, False):
            stage.add(batch)
            (unit,) = stage.units()
            stage.decide([(unit.unit, 100)], [ABOVE], is_partial=is_partial)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    assert sizes[-1] - sizes[20] < 4 << 20


def test_a_part_has_the_same_rows_of_every_column() -> None:
    plan, _ = Stage(0).plan(
        make_batch([{"context": context(5, 7 + number % 2)} for number in range(10)]), {}
    )
    part: dict[str, Any] = plan.part(slice(3, 7))._asdict()
    for name, whole in plan._asdict().items():
        if name in ("batch", "parent_spans", "torch_names"):
            assert part[name] is whole
        else:
            assert np.array_equal(part[name], whole[3:7]), name
