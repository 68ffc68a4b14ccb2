"""What is decided of any rows is what the definitions say, and a plan has the spans that it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from batches import make_batch
from models.folding import FoldModel
from otel_recfn.batches import span_plan
from otel_recfn.batches.announced import announced
from otel_recfn.batches.fold.units import Fold, PlannedRanges
from otel_recfn.batches.links import LinkFinder, Links
from otel_recfn.batches.rows import (
    Above,
    Fate,
    KnownContexts,
    fates_of_rows,
    linked_contexts,
    linked_roots,
    linked_rows,
    outermost_begun,
    outermost_ended,
    planned_rows,
    rows_cross,
    sums_above,
    wanted_above,
)
from otel_recfn.batches.span_plan import SpanPlan, fates_of, plan_spans
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, ContextFlag, EventFlag, EventKind, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.model.tables import NO_CONTEXT, SpanContextRef
from otel_recfn.support.span_ids import span_id

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


def plan_of(batch: Batch, rootless: Sequence[int], order: Order = None) -> SpanPlan:
    links = LinkFinder().match(batch)
    roots = {root: SpanContext(9, root or 1, False) for root in rootless}
    return plan_spans(batch, fates_of(batch), links, span_of, roots.get, order)


def any_order(data: st.DataObject, batch: Batch) -> NDArray[np.int64]:
    return np.array(data.draw(st.permutations(range(len(batch)))), np.int64)


@given(batch=any_batch, rootless=st.lists(st.sampled_from(IDS)), data=st.data())
def test_an_order_changes_nothing_but_the_order(batch: Batch, rootless: list[int], data: st.DataObject) -> None:
    order = any_order(data, batch)
    plain, ordered = [plan_of(batch, rootless, each) for each in (None, order)]
    places = [place for place in order.tolist() if place in plain.row]
    assert ordered.row.tolist() == places
    plain = plain.part(np.searchsorted(plain.row, places))
    for name in ("fate", "row", "parent", "above", "linked_id", "linked_above"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(ordered, name), name)


@given(batch=any_batch, rootless=st.lists(st.sampled_from(IDS)))
def test_each_row_becomes_what_its_context_says(batch: Batch, rootless: list[int]) -> None:
    plan = plan_of(batch, rootless)
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
def test_sums_are_those_of_the_rows(batch: Batch, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(st.integers(0, len(batch) - 1), st.integers(0, 3)), max_size=40))
    row, above = np.array([*zip(*pairs, strict=True)] or [[], []], np.int64)
    sums, events = sums_above(batch, row, above, 4), list(batch.events())
    for place in range(4):
        rows = [events[at] for at, of in pairs if of == place]
        assert [column[place] for column in sums[:-1]] == [
            len(rows),
            min([one.start_ns for one in rows], default=(1 << 63) - 1),
            max([one.end_ns for one in rows] + [0]),
            sum(one.parent == 0 for one in rows),
            sum(bool(one.flags & EventFlag.ERROR) for one in rows),
        ]
    assert sums.name.tolist() == sorted({int(batch.name[at]) for at, _ in pairs})
    with pytest.raises(IndexError):
        sums_above(batch, np.array([len(batch)]), np.array([0]), 4)


@given(batch=any_batch, announced_rows=st.lists(st.integers(0, 29), max_size=20))
def test_outermost_ranges_are_found(batch: Batch, announced_rows: list[int]) -> None:
    opened = announced(batch, np.array([row for row in announced_rows if row < len(batch)], np.int64))
    batch = replace(batch, opened=opened)
    events = list(batch.events())
    ended = [one.event_id for one in events if one.parent == 0 and one.kind == EventKind.RANGE]
    assert outermost_ended(batch).tolist() == ended
    begun, counted = outermost_begun(batch), [one for one in opened if one.source != EventSource.STEP]
    assert begun.event_id.tolist() == [one.event_id for one in counted]
    assert begun.of_context.tolist() == [sum(one.context == at for one in counted) for at in range(len(batch.contexts))]
    out_of_order = any(later.end_ns < earlier.end_ns for earlier, later in pairwise(events))
    elsewhere = any(one.parent and one.parent >> ORDINAL_BITS != one.event_id >> ORDINAL_BITS for one in events)
    assert rows_cross(batch) == (out_of_order and elsewhere)


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


def test_what_a_row_links_to() -> None:
    assert linked_contexts(LINKS).tolist() == [0, 1]
    assert linked_roots(LINKS, OF_LINKS).tolist() == [8]
    linked_id, linked_above = linked_rows(LINKS, OF_LINKS, ABOVE, ALL_ROWS[::-1].copy(), 3)
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
def test_rows_link_to_what_has_a_span(links_of: tuple[Links, int], fates: list[Fate], data: st.DataObject) -> None:
    links, rows = links_of
    fate, of_links = np.array(fates, np.uint8), list(zip(*[column.tolist() for column in links[:7]], strict=True))
    roots = linked_roots(links, fate)
    assert roots.tolist() == sorted({root for _, _, root, *_, at in of_links if fates[at] == Fate.ROOTLESS})
    assert linked_contexts(links).tolist() == sorted({at for *_, at in of_links})
    of_context, of_root = [
        np.array(data.draw(st.lists(st.integers(-1, 5), min_size=count, max_size=count)), np.int64) for count in (3, len(roots))
    ]
    row = np.array(data.draw(st.permutations(range(rows)))[: data.draw(st.integers(0, rows))], np.int64)
    expected = dict.fromkeys(row.tolist(), (0, 0))
    above_root = dict(zip(roots.tolist(), of_root.tolist(), strict=True))
    for at, event_id, root, *_, context in of_links:
        place = {Fate.IN_SPAN: of_context[context], Fate.ROOTLESS: above_root.get(root, -1)}.get(fates[context], -1)
        if place >= 0 and at in expected:
            expected[at] = span_id(event_id), place
    told = linked_rows(links, fate, Above(of_context, roots, of_root), row, rows)
    assert list(zip(*[column.tolist() for column in told], strict=True)) == [*expected.values()]


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
def test_links_that_index_nothing_are_refused(links: Links, fate: Any, above: Above, rows: int) -> None:
    with pytest.raises(IndexError):
        linked_rows(links, fate, above, ALL_ROWS, rows)


@given(batch=any_batch, shown=st.sets(st.sampled_from(IDS)), data=st.data())
def test_a_planned_range_is_folded_as_its_columns_say(batch: Batch, shown: set[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=40))
    above = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    row, ids = np.array(rows, np.int64), np.array(sorted(shown), np.uint64)
    unit, name = np.array([3, 4, 4], np.uint32), np.arange(7, 7 + len(batch.names), dtype=np.uint32)
    ranges = PlannedRanges(batch, row, batch.parent[row], np.array(above, np.int64), unit, name, ids)
    told = []
    for fold in (Fold(5, 0, 4), FoldModel(5, 0, 4)):
        fold.add_planned(ranges, 100)
        kept, done = fold.kept().tolist(), fold.finish([3, 4], [2, 3], [0, 1], [False] * 2)
        told.append([kept, *[column.tolist() for column in done]])
    assert told[0] == told[1]


@pytest.mark.parametrize("wrong", [{"row": [1]}, {"row": [-1]}, {"above": [1]}, {"above": [-1]}, {"name": []}])
def test_a_planned_range_that_indexes_nothing_is_refused(wrong: dict[str, list[int]]) -> None:
    one = np.zeros(1, np.int64)
    ids, unit, batch = one.astype(np.uint64), one.astype(np.uint32), make_batch([{}])
    ranges = PlannedRanges(batch, one, ids, one, unit, np.zeros(len(batch.names), np.uint32), ids)
    wrong_ranges = ranges._replace(**{field: np.array(those, getattr(ranges, field).dtype) for field, those in wrong.items()})
    fold = Fold(5, 0, 4)
    with pytest.raises(IndexError):
        fold.add_planned(wrong_ranges, 0)
    fold.add_planned(ranges, 0)
    assert fold.rows([0]) == [1]


def known(contexts: int) -> KnownContexts:
    return KnownContexts(np.full(contexts, Fate.ROOTLESS, np.uint8), np.zeros(contexts, np.uint8))


def test_what_indexes_nothing_is_refused() -> None:
    batch = make_batch([{"context": CONTEXTS[1], "root": 7}])
    fates = np.full(1, Fate.ROOTLESS, np.uint8)
    with pytest.raises(IndexError):
        fates_of_rows(batch, known(1))
    nothing = np.zeros(0, np.int64)
    with pytest.raises(IndexError):
        planned_rows(batch, fates, np.zeros(2, np.uint8), Above(np.zeros(2, np.int64), nothing.astype(np.uint64), nothing))


@pytest.mark.parametrize("wrong", [None, [1], np.zeros(2, np.uint8), np.zeros(1, np.int8), np.zeros((1, 1), np.uint8)])
def test_what_are_no_fates_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        wanted_above(make_batch([{}]), wrong)
