"""Both twins of planning rows decide the same of any rows, and give a plan the same spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from batches import make_batch
from otel_recfn.batches import span_plan
from otel_recfn.batches.announced import announced
from otel_recfn.batches.fold.protocol import PlannedRanges
from otel_recfn.batches.fold.python_fold import PythonFold
from otel_recfn.batches.links.choice import links_maker
from otel_recfn.batches.links.protocol import Links
from otel_recfn.batches.rows.choice import rows_planner
from otel_recfn.batches.rows.protocol import Above, Fate, KnownContexts, PlansRows
from otel_recfn.batches.rows.python_rows import PythonRows
from otel_recfn.batches.span_plan import SpanPlan, fates_of, plan_spans
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ContextFlag, EventFlag, EventKind, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.model.tables import NO_CONTEXT, SpanContextRef
from otel_recfn.support.span_ids import span_id

native_fold = pytest.importorskip("otel_recfn.batches.fold.native_fold", reason="there is no native part here")
native_rows = pytest.importorskip("otel_recfn.batches.rows.native_rows", reason="there is no native part here")
pytestmark = pytest.mark.one_python

CONTEXTS = [NO_CONTEXT, *[SpanContextRef(of, of + 7, flags) for of, flags in enumerate((0, 1, 1, 2, 3, 5, 7, 4), 1)]]
Order = NDArray[np.int64] | None
IDS = [0, 1, 2, 3, 1 << 40, (1 << 63) + 5]
any_row = st.fixed_dictionaries(
    {
        "event_id": st.sampled_from(IDS[1:]),
        "kind": st.sampled_from([*EventKind, EventKind.RANGE, EventKind.RANGE]),
        "source": st.sampled_from([EventSource.TORCH, EventSource.STEP]),
        "scope": st.sampled_from([RecordScope.FUNCTION, RecordScope.BACKWARD_FUNCTION]),
        "parent": st.sampled_from(IDS),
        "root": st.sampled_from(IDS),
        "context": st.sampled_from(CONTEXTS),
        "start_ns": st.integers(-5, 5),
        "end_ns": st.integers(-5, 5),
        "flags": st.sampled_from([0, int(EventFlag.ERROR), int(EventFlag.ASYNC | EventFlag.ERROR)]),
        "sequence_nr": st.integers(-1, 2),
        "forward_thread_id": st.integers(0, 1),
    }
)


def batch_of(rows: list[dict[str, Any]]) -> Batch:
    """Also of ranges that lie in each other."""
    tree = {name: np.array([row[name] for row in rows], np.uint64) for name in ("parent", "root")}
    return replace(make_batch([{name: row[name] for name in row if name not in tree} for row in rows]), **tree)


any_batch = st.lists(any_row, min_size=1, max_size=30).map(batch_of)


def span_of(one: SpanContextRef) -> SpanContext:
    return SpanContext(one.trace_id, one.span_id, False)


def plan_by(planner: PlansRows, batch: Batch, rootless: Sequence[int], order: Order = None) -> SpanPlan:
    links = links_maker()().match(batch)
    roots = {root: SpanContext(9, root or 1, False) for root in rootless}
    return plan_spans(planner, batch, fates_of(planner, batch), links, span_of, roots.get, order)


def any_order(data: st.DataObject, batch: Batch) -> NDArray[np.int64]:
    return np.array(data.draw(st.permutations(range(len(batch)))), np.int64)


@given(batch=any_batch, rootless=st.lists(st.sampled_from(IDS)), as_they_stand=st.booleans(), data=st.data())
def test_both_plan_the_same(batch: Batch, rootless: list[int], as_they_stand: bool, data: st.DataObject) -> None:
    order = None if as_they_stand else any_order(data, batch)
    native, python = [plan_by(planner, batch, rootless, order) for planner in (native_rows.NativeRows(), PythonRows())]
    assert native.spans_above == python.spans_above
    for name in ("fate", "row", "parent", "above", "linked_id", "linked_above"):
        mine, theirs = getattr(native, name), getattr(python, name)
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, name)


@given(batch=any_batch, rootless=st.lists(st.sampled_from(IDS)), data=st.data())
def test_an_order_changes_nothing_but_the_order(batch: Batch, rootless: list[int], data: st.DataObject) -> None:
    order = any_order(data, batch)
    plain, ordered = [plan_by(native_rows.NativeRows(), batch, rootless, each) for each in (None, order)]
    places = [place for place in order.tolist() if place in plain.row]
    assert ordered.row.tolist() == places
    plain = plain.part(np.searchsorted(plain.row, places))
    for name in ("fate", "row", "parent", "above", "linked_id", "linked_above"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(ordered, name), name)


@given(batch=any_batch, rootless=st.lists(st.sampled_from(IDS)))
def test_each_row_becomes_what_its_context_says(batch: Batch, rootless: list[int]) -> None:
    plan = plan_by(native_rows.NativeRows(), batch, rootless)
    spans = dict(zip(plan.row.tolist(), zip(plan.parent.tolist(), plan.above.tolist(), strict=True), strict=True))
    for place, row in enumerate(batch.events()):
        is_step = row.source == EventSource.STEP and row.context.flags & ContextFlag.STEP and not row.parent
        fate = span_plan.fate_of(row.context) if row.kind == EventKind.RANGE else Fate.OTHER_KIND
        if fate == Fate.IN_SPAN and is_step:
            fate = Fate.OTHER_KIND
        if fate == Fate.ROOTLESS and row.root not in rootless:
            fate = Fate.UNSAMPLED
        assert plan.fate[place] == fate
        assert (place in spans) == (fate >= Fate.IN_SPAN)
        if place in spans:
            in_step = row.context.flags & ContextFlag.STEP and row.parent == row.root
            parent, above = spans[place]
            assert parent == (0 if in_step else row.parent)
            assert plan.spans_above[above].span_id == (row.context.span_id if fate == Fate.IN_SPAN else row.root or 1)


@given(batch=any_batch, data=st.data())
def test_both_sum_up_the_same(batch: Batch, data: st.DataObject) -> None:
    rows = st.lists(st.tuples(st.integers(0, len(batch) - 1), st.integers(0, 3)), max_size=40)
    row, above = np.array([*zip(*data.draw(rows), strict=True)] or [[], []], np.int64)
    native, python = [planner.sums(batch, row, above, 4) for planner in (native_rows.NativeRows(), PythonRows())]
    for name, mine, theirs in zip(native._fields, native, python, strict=True):
        assert mine.dtype == theirs.dtype == (np.uint32 if name == "name" else np.int64), name
        np.testing.assert_array_equal(mine, theirs, name)
    for planner in (native_rows.NativeRows(), PythonRows()):
        with pytest.raises(IndexError):
            planner.sums(batch, np.array([len(batch)]), np.array([0]), 4)


@given(batch=any_batch, announced_rows=st.lists(st.integers(0, 29), max_size=20))
def test_both_find_the_same_outermost_ranges(batch: Batch, announced_rows: list[int]) -> None:
    opened = announced(batch, np.array([row for row in announced_rows if row < len(batch)], np.int64))
    batch = replace(batch, opened=opened)
    native, python = native_rows.NativeRows(), PythonRows()
    told = [(rows.ended(batch), *rows.begun(batch)) for rows in (native, python)]
    for mine, theirs in zip(*told, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    assert native.cross(batch) == python.cross(batch)
    steps = [one.event_id for one in opened if one.source == EventSource.STEP]
    assert sorted([*told[0][1].tolist(), *steps]) == sorted(one.event_id for one in opened)


LINKS = Links(
    row=np.array([0, 2]),
    event_id=np.array([5, 6], np.uint64),
    root=np.array([7, 8], np.uint64),
    start_ns=np.zeros(2, np.int64),
    end_ns=np.zeros(2, np.int64),
    thread=np.zeros(2, np.uint32),
    context=np.array([0, 1], np.uint32),
    tracks=(),
    contexts=CONTEXTS[:2],
)
OF_LINKS = np.array([Fate.IN_SPAN, Fate.ROOTLESS], np.uint8)
ABOVE = Above(np.array([4, -1]), np.array([8], np.uint64), np.array([9]))
ALL_ROWS = np.arange(3)


@pytest.mark.parametrize("planner", [PythonRows(), native_rows.NativeRows()])
def test_what_a_row_links_to(planner: PlansRows) -> None:
    assert planner.linked_contexts(LINKS).tolist() == [0, 1]
    assert planner.linked_roots(LINKS, OF_LINKS).tolist() == [8]
    linked_id, linked_above = planner.linked(LINKS, OF_LINKS, ABOVE, ALL_ROWS[::-1].copy(), 3)
    assert linked_id.tolist() == [span_id(6), 0, span_id(5)]
    assert linked_above.tolist() == [9, 0, 4]


@st.composite
def any_links(draw: st.DrawFn) -> tuple[Links, int]:
    """Links of some of so many rows."""
    rows = draw(st.integers(1, 20))
    row = sorted(draw(st.sets(st.integers(0, rows - 1))))
    told = st.tuples(st.sampled_from(IDS[1:]), st.sampled_from(IDS), st.integers(0, 2))
    event_id, root, context = zip(*[draw(told) for _ in row], strict=True) if row else ((), (), ())
    times, ids, contexts = np.zeros(len(row), np.int64), np.array(event_id, np.uint64), np.array(context, np.uint32)
    roots, threads = np.array(root, np.uint64), np.zeros(len(row), np.uint32)
    return Links(np.array(row, np.int64), ids, roots, times, times, threads, contexts, (), CONTEXTS[:3]), rows


@given(links_of=any_links(), fates=st.lists(st.sampled_from(Fate), min_size=3, max_size=3), data=st.data())
def test_both_link_the_same(links_of: tuple[Links, int], fates: list[Fate], data: st.DataObject) -> None:
    links, rows = links_of
    fate, planners = np.array(fates, np.uint8), [PythonRows(), native_rows.NativeRows()]
    roots, contexts = planners[0].linked_roots(links, fate), planners[0].linked_contexts(links)
    np.testing.assert_array_equal(planners[1].linked_roots(links, fate), roots)
    np.testing.assert_array_equal(planners[1].linked_contexts(links), contexts)
    of_context, of_root = [
        np.array(data.draw(st.lists(st.integers(-1, 5), min_size=count, max_size=count)), np.int64) for count in (3, len(roots))
    ]
    row = np.array(data.draw(st.permutations(range(rows)))[: data.draw(st.integers(0, rows))], np.int64)
    python, native = [planner.linked(links, fate, Above(of_context, roots, of_root), row, rows) for planner in planners]
    for mine, theirs in zip(native, python, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("planner", [PythonRows(), native_rows.NativeRows()])
@pytest.mark.parametrize(
    ("links", "fate", "above", "rows"),
    [
        (LINKS._replace(row=np.array([0, 3])), OF_LINKS, ABOVE, 3),
        (LINKS, OF_LINKS[:1], ABOVE, 3),
        (LINKS, OF_LINKS, ABOVE._replace(of_context=np.array([4])), 3),
        (LINKS, OF_LINKS, ABOVE, 2),
    ],
    ids=["a link of no row", "a context without a fate", "a context without a place", "a row that isn't there"],
)
def test_links_that_index_nothing_are_refused(planner: PlansRows, links: Links, fate: Any, above: Above, rows: int) -> None:
    with pytest.raises(IndexError):
        planner.linked(links, fate, above, ALL_ROWS, rows)


@given(batch=any_batch, shown=st.sets(st.sampled_from(IDS)), data=st.data())
def test_a_planned_range_is_folded_as_its_columns_say(batch: Batch, shown: set[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=40))
    above = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    row, ids = np.array(rows, np.int64), np.array(sorted(shown), np.uint64)
    unit, name = np.array([3, 4, 4], np.uint32), np.arange(7, 7 + len(batch.names), dtype=np.uint32)
    ranges = PlannedRanges(batch, row, batch.parent[row], np.array(above, np.int64), unit, name, ids)
    told = []
    for fold in (native_fold.NativeFold(5, 0, 30, 4), PythonFold(5, 0, 30, 4), native_fold.NativeFold(5, 0, 30, 4)):
        of_columns = fold.add(*ranges.columns(), 100) if told else fold.add_planned(ranges, 100)
        kept, done = fold.kept().tolist(), fold.finish([3, 4], [2, 3], [False] * 2)
        told.append([of_columns, kept, *[column.tolist() for column in done]])
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("wrong", [{"row": [1]}, {"row": [-1]}, {"above": [1]}, {"above": [-1]}, {"name": []}])
def test_a_planned_range_that_indexes_nothing_is_refused(wrong: dict[str, list[int]]) -> None:
    one = np.zeros(1, np.int64)
    ids, unit, batch = one.astype(np.uint64), one.astype(np.uint32), make_batch([{}])
    ranges = PlannedRanges(batch, one, ids, one, unit, np.zeros(len(batch.names), np.uint32), ids)
    wrong_ranges = ranges._replace(**{field: np.array(those, getattr(ranges, field).dtype) for field, those in wrong.items()})
    fold = native_fold.NativeFold(5, 0, 30, 4)
    with pytest.raises(IndexError):
        fold.add_planned(wrong_ranges, 0)
    assert fold.add_planned(ranges, 0) == 1


def known(contexts: int) -> KnownContexts:
    return KnownContexts(np.full(contexts, Fate.ROOTLESS, np.uint8), np.zeros(contexts, np.uint8))


@pytest.mark.parametrize("planner", [PythonRows(), native_rows.NativeRows()])
def test_what_indexes_nothing_is_refused(planner: PlansRows) -> None:
    batch = make_batch([{"context": CONTEXTS[1], "root": 7}])
    fates = np.full(1, Fate.ROOTLESS, np.uint8)
    with pytest.raises(IndexError):
        planner.fates(batch, known(1))
    nothing = np.zeros(0, np.int64)
    with pytest.raises(IndexError):
        planner.rows(batch, fates, np.zeros(2, np.uint8), Above(np.zeros(2, np.int64), nothing.astype(np.uint64), nothing))


@pytest.mark.parametrize("wrong", [None, [1], np.zeros(2, np.uint8), np.zeros(1, np.int8), np.zeros((1, 1), np.uint8)])
def test_what_are_no_fates_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        native_rows.NativeRows().wanted(make_batch([{}]), wrong)


def test_the_native_one_is_taken_unless_the_user_asks_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_RECFN_RECORDER", raising=False)
    assert isinstance(rows_planner(), native_rows.NativeRows)
    monkeypatch.setenv("OTEL_RECFN_RECORDER", "python")
    assert isinstance(rows_planner(), PythonRows)
