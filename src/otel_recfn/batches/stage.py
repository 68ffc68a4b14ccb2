"""The way of rows to units, and the decision of units: ``_native.Stage``, with its tables as numpy
sees them.

    batch ──► add ──► planned, linked, folded natively; the rows that may be kept wait here
    units ──► decide ──► Decided: the ranges that are kept, sums of the others, summaries of paths

A unit's ranges wait until there are enough of them, or it ends; then they are compared with each
other and with those that were kept before. So a unit that ends soon, as most do, is decided once,
when it is known how many spans it may have.

A range comes when it has ended, mostly after its children. It ranks by its duration, and of equal
ones the one that began first ranks higher, but always above its descendants, so that a kept range
has all its ancestors. The others are folded into their nearest kept ancestor. What is kept in the
end shows the unit's tree of calls, if there are more long ranges than spans.

Few numpy operations process all rows of a batch, here and in the Python that follows: each of them
releases the GIL and acquires it again, and the program's thread waits meanwhile, too. So what is
done to each row is done natively, in one call.

A range whose parent was folded before it came, which only happens among many, belongs directly to
the unit; so do, if a unit is finished in parts, the descendants of a range that comes with a later
part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import namedtuple
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn import _native
from otel_recfn.batches.merging import DESCRIPTIONS, batch_from_fields
from otel_recfn.batches.number_sets import Indices
from otel_recfn.batches.outcomes import SAMPLED, outcome_of, span_context
from otel_recfn.batches.sampled_functions import SampledRun
from otel_recfn.batches.span_plan import Ids, SpanPlan
from otel_recfn.model.batch import Batch, SpanContextRef, Track, empty_column
from otel_recfn.model.events import ContextFlag
from otel_recfn.support.span_ids import current_key

Table = NDArray[Any]
"""A numpy array of records with named fields."""

MAX_WAITING = 1024
"""The ranges of a unit that wait before they are compared, unless the caller gives another
number.
"""
ROWS_TO_SPARE = 1 << 15
"""The rows that may be held without need, some 5 MB, before they are looked through."""
MAX_BATCHES = 32
"""The batches that are held apart; more are merged, since each is searched when a unit is
decided.
"""
MAX_THREADS = 1 << 12
"""The most threads that a stage knows; beyond, summaries of the oldest ones name none."""
_STEP = int(ContextFlag.STEP)
_LOW = (1 << 64) - 1
_UNLIMITED = (1 << 63) - 1
_TYPES = {name: np.dtype(fields) for name, fields in _native.TABLE_TYPES.items()}
"""The types of tables: C++ names their fields, beside each struct."""
_RECORDS: dict[str, Any] = {
    name: namedtuple(name, fields.names or ()) for name, fields in _TYPES.items()
}


class OwnRoot(NamedTuple):
    """A root of ours, above outermost ranges of a thread without a span around them: those that
    began from one event id up to another one.
    """

    first: int
    until: int
    """The event id after the last one."""
    context: SpanContext


def find_root(roots: Sequence[OwnRoot], outermost: int) -> OwnRoot | None:
    """The root above an outermost range, of some in ascending order; None if there is none."""
    place = bisect_right(roots, outermost, key=attrgetter("first")) - 1
    return roots[place] if place >= 0 and outermost < roots[place].until else None


class Added(NamedTuple):
    """The result of adding a batch."""

    outcomes: Sequence[int]
    """The number of rows of each ``Outcome``."""
    planned: int
    """The number of rows that become spans or are folded."""
    new_units: Mapping[int, SpanContext] = {}
    """The units that begin in it, by number, each with the span above."""
    largest_unit_rows: int = 0
    """The rows, since its last part, of the unit in this batch that has most of them."""
    names: int = 0
    """The number of names that the stage knows."""


class Decided(NamedTuple):
    """Units that were decided together, as tables.

    ``unit`` is a place among them. Spans are numbered, the kept ranges first.

    It keeps no names but its own, because a program may make new ones, and it may wait for an
    exporter.
    """

    plan: SpanPlan
    """The plan of the kept ranges, parents first."""
    sums: Table
    """The sums of what was folded into one span, or (``is_whole_unit``) in the whole unit, whose
    first span tells it: ``unit``, ``span`` (a number; -1: the root above), ``ranges``,
    ``duration_ns``, and ``top_end``, where its names end in ``top``.
    """
    top: Table
    """Names that took the most self time: ``name``, ``count``, ``self_ns``."""
    summaries: Table
    """Spans for the ranges of a call path in one thread, parents first."""
    callers: Table
    """Operators that only call the one of a span (``span``: its number), in whose place that is
    shown: their ``name``.
    """
    names: Mapping[int, str]
    """The names in the tables, by number."""
    threads: Mapping[int, Track]
    """The threads of summaries, by the recorder's number."""
    extra_attributes: dict[int, dict[str, Any]]
    """Attributes of whole units, by the numbers of their first spans."""

    @property
    def first_spans(self) -> Mapping[int, int]:
        """The number of the span of each unit that is seen first: the root above (-1), or else the
        longest one that lies in no other span of the unit.
        """
        sums = self.sums[self.sums["is_whole_unit"] != 0]
        return dict(zip(sums["unit"].tolist(), sums["span"].tolist(), strict=True))


class Stage(_native.Stage):
    """Open units, for one thread at a time. Each has a number, from its first row to its decision.

    Where it finds no memory, it raises MemoryError, and isn't to be used any more.

    Args:
        budget: how many ranges a unit keeps at most.
        max_waiting: the number of rows of a unit, at least one, that wait before they are
            compared.
        max_units: the most units that are open; beyond, those that had no rows for longest are due.
        max_rows: the most rows that wait for all units; beyond, the same.
        many_rows: the rows after which a unit counts as quiet.
    """

    _torch_names: bool
    _threads: dict[int, Track]
    """The threads of the ranges that were added, by the recorder's number: the newest of them."""

    def __new__(
        cls,
        budget: int,
        max_waiting: int = MAX_WAITING,
        *,
        torch_names: bool = False,
        max_units: int = _UNLIMITED,
        max_rows: int = _UNLIMITED,
        many_rows: int = _UNLIMITED,
    ) -> Stage:
        """A stage without a unit."""
        stage = super().__new__(
            cls,
            budget=budget,
            max_waiting=max_waiting,
            max_units=max_units,
            max_rows=max_rows,
            many_rows=many_rows,
            torch_names=torch_names,
            rows_to_spare=ROWS_TO_SPARE,
            max_batches=MAX_BATCHES,
            columns=DESCRIPTIONS,
            batch_from_fields=batch_from_fields,
        )
        stage._torch_names = torch_names
        stage._threads = {}
        return stage

    def add(self, batch: Batch, roots: Sequence[OwnRoot] = (), *, continues: bool = False) -> Added:
        """Add a batch, whose rows wait for the decision of their units.

        Args:
            batch: a batch, or a part of one.
            roots: the roots of recorded traces of ours, in ascending order.
            continues: it is a part of the same batch as the last one.
        """
        raw = self._add(batch, _context_table(batch), _root_table(roots), continues)
        self._note_threads(batch.tracks)
        new_units = _parent_spans(raw.new_units, batch, roots)
        return Added(
            raw.outcomes,
            raw.planned,
            new_units,
            largest_unit_rows=raw.largest_unit_rows,
            names=raw.names,
        )

    def plan(self, batch: Batch, roots: Sequence[OwnRoot] = ()) -> tuple[SpanPlan, Added]:
        """Plan a batch in which each row becomes a span of its own and nothing waits."""
        raw = self._plan(batch, _context_table(batch), _root_table(roots), current_key())
        row = _column(raw.row, np.int64)
        units = _parent_spans(raw.new_units, batch, roots)
        event_id = batch.event_id[row]
        return self._span_plan(raw, batch, row, event_id, list(units.values())), Added(
            raw.outcomes, len(row), units
        )

    def find(self, span: SpanContext | SpanContextRef) -> int | None:
        """The number of the open unit below a span; None if there is none."""
        return self._find(*_span_key(span)) or None

    def decide(
        self,
        grants: Sequence[tuple[int, int]],
        parents: Sequence[SpanContext],
        *,
        is_partial: bool,
        named: Container[int] = (),
        sampled: Sequence[tuple[int, SampledRun]] = (),
    ) -> Decided:
        """Decide units, each once, and forget them, or their ranges until now if they go on.

        Args:
            grants: each unit and the number of spans that it may have.
            parents: the spans above these units.
            is_partial: parts of them are decided.
            named: the units whose sums have the names that took most, even if nothing is folded.
            sampled: units and runs of samples in them that get spans, beside which summaries lie.
        """
        rows = [(unit, spans, unit in named) for unit, spans in grants]
        grant_table = np.array(rows, _TYPES["grant"])
        raw = self._decide(grant_table, _sampled_table(sampled), is_partial, current_key())
        event_id = None if raw.event_id is None else _column(raw.event_id, np.uint64)
        plan = self._span_plan(raw, raw.batch, np.arange(len(raw.batch)), event_id, parents)
        summaries = typed_table("summary", raw.summaries)
        threads = set(summaries["thread"].tolist())
        return Decided(
            plan=plan,
            sums=typed_table("sums", raw.sums),
            top=typed_table("top", raw.top),
            summaries=summaries,
            callers=typed_table("caller", raw.callers),
            names=raw.names,
            threads={
                number: self._threads[number] for number in threads if number in self._threads
            },
            extra_attributes={},
        )

    def _note_threads(self, tracks: Sequence[Track]) -> None:
        known = self._threads
        for track in tracks:
            known.pop(track.number, None)
            known[track.number] = track
        if len(known) > MAX_THREADS:
            for oldest in list(known)[: len(known) // 2]:
                del known[oldest]

    def _span_plan(
        self,
        raw: _native.Planned | _native.Decided,
        batch: Batch,
        row: Indices,
        event_id: Ids | None,
        units: Sequence[SpanContext],
    ) -> SpanPlan:
        linked_id = raw.linked_id
        linked_span = raw.linked_span
        traces = [high << 64 | low for high, low in typed_table("trace", raw.traces).tolist()]
        parent = _column(raw.parent, np.uint64)
        no_id = empty_column(np.uint64, len(row))
        no_linked_span = empty_column(np.int64, len(row))
        return SpanPlan(
            batch=batch,
            row=row,
            # Both are empty: most units have no such spans.
            event_id=parent if event_id is None else event_id,
            parent=parent,
            parent_span=_column(raw.parent_span, np.int64),
            linked_id=no_id if linked_id is None else _column(linked_id, np.uint64),
            linked_span=no_linked_span if linked_span is None else _column(linked_span, np.int64),
            parent_spans=[
                *units,
                *[SpanContext(trace_id, 0, False, SAMPLED) for trace_id in traces],
            ],
            torch_names=self._torch_names,
        )


def _column(values: Any, kind: Any) -> NDArray[Any]:
    return np.frombuffer(values, kind)


def records(name: str, table: Table) -> Iterator[Any]:
    """The rows of a table of that name, with its fields as attributes."""
    return starmap(_RECORDS[name], table.tolist())


def typed_table(name: str, rows: _native.Column) -> Table:
    """The table of that name with these rows."""
    return _column(rows, _TYPES[name])


def _context_table(batch: Batch) -> Table:
    rows = [
        (*_span_key(one), int(outcome_of(one)), int(one.flags) & _STEP != 0)
        for one in batch.contexts
    ]
    return np.array(rows, _TYPES["context"])


def asked_table(asked: Sequence[tuple[int, int]]) -> Table:
    """Outermost ranges in ascending order, each with the first range of its trace."""
    return np.array(asked, _TYPES["asked"])


def _root_table(roots: Sequence[OwnRoot]) -> Table:
    rows = [(root.first, root.until, *_span_key(root.context)) for root in roots]
    return np.array(rows, _TYPES["root"])


def _sampled_table(sampled: Sequence[tuple[int, SampledRun]]) -> Table:
    rows = [
        (unit, run.enclosing, run.thread.number, run.start_ns, run.end_ns) for unit, run in sampled
    ]
    return np.array(rows, _TYPES["sampled"])


def _span_key(span: SpanContext | SpanContextRef) -> tuple[int, ...]:
    return span.trace_id >> 64, span.trace_id & _LOW, span.span_id


def _parent_spans(
    units: Sequence[_native.NewUnit], batch: Batch, roots: Sequence[OwnRoot]
) -> dict[int, SpanContext]:
    """The spans above units that begin in a batch."""
    own = {root.first: root.context for root in roots} if units else {}
    return {
        one.unit: own[one.root] if one.context < 0 else span_context(batch.contexts[one.context])
        for one in units
    }
