"""From a plan of spans to a plan of few: every range comes to its unit, and a unit's spans go out when it is decided.

plan ──► add ──► fold: the longest of each unit, sums of the rest ──► decide ──► pieces of spans (outgoing.py)
         rows that are kept ──► KeptRows ──────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn.batches.distinct import Distinct
from otel_recfn.batches.fold.choice import fold
from otel_recfn.batches.fold.finished import FinishedUnits, Ids
from otel_recfn.batches.fold.kept_rows import KeptRows
from otel_recfn.batches.fold.unit import LINKABLE
from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.batches.remembered import Remembered, by_id
from otel_recfn.batches.span_plan import Fate, SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import EventFlag
from otel_recfn.model.scope import RecordScope
from otel_recfn.sinks.spans.budgets import Budgets
from otel_recfn.sinks.spans.open_units import OpenUnit, OpenUnits, numbers_of
from otel_recfn.sinks.spans.outgoing import KeptSpans, Piece, SummarySpans
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.summaries import Extent, Teller, Unit
from otel_recfn.sinks.spans.trace_boundaries import StepTrace
from otel_recfn.support.span_ids import span_ids

OTHER_NAME = "(other)"
MAX_UNITS = 4096
MAX_ROWS_OF_A_UNIT = 100_000
"""A unit that stays open is decided in parts of so many rows."""
MAX_LINKABLE = 1 << 17
MAX_NAMES = 1 << 16
"""A program may make a new name each step: when so many are known, all units are decided in part, and they are forgotten."""
BACKWARD = int(RecordScope.BACKWARD_FUNCTION)


class Folding:
    """Of one sink.

    Args:
        budgets: how many spans units may have.
        most: spans of a unit.
        min_duration_ns: shorter ranges are folded.
        units: the open ones.
        traces: of our own.
    """

    def __init__(self, budgets: Budgets, most: int, min_duration_ns: int, units: OpenUnits, traces: StepTraces) -> None:
        self._budgets, self._units, self._traces = budgets, units, traces
        self._fold = fold(most, min_duration_ns, MAX_ROWS_OF_A_UNIT)
        self._names: Distinct[str] = Distinct([OTHER_NAME])
        self._rows = KeptRows(self._fold.kept)
        self._links: dict[int, tuple[int, SpanContext]] = {}
        """By event id: span id and trace of what a kept range links to."""
        self._spans_of = Remembered(MAX_LINKABLE, columns=2)
        """Of ranges that others may link to, by their span id: the span that tells of them."""
        self._adding: SpanPlan | None = None
        self._added = 0
        """How many spans of that plan were added, and are not noted for want of memory."""
        self._owed: Ids = np.zeros(0, np.uint64)
        """Outermost ranges that haven't come, and have spans below them that were handed on."""
        self._drained_ns = 0
        self.lost = 0
        """Ranges of units that there was no memory to decide; whoever counts them sets it to 0."""

    def begin_batch(self, batch: Batch) -> None:
        """A batch comes."""
        self._drained_ns = max(self._drained_ns, batch.drained_ns)
        self._units.begin_batch(batch)

    def add(self, plan: SpanPlan) -> int:
        """Add the spans of a plan to their units, up to one with which its unit is full. How many were added."""
        self._finish_adding()
        batch, rows = plan.batch, plan.row
        linkable = (batch.sequence_nr[rows] >= 0) & (batch.scope[rows] != BACKWARD)
        above_id = np.array([span.span_id for span in plan.spans_above], np.uint64)[plan.above]
        self._adding = plan
        self._added = self._fold.add(
            self._units.numbers(plan),
            batch.event_id[rows],
            np.where(plan.parent_id == above_id, np.uint64(0), batch.parent[rows]),
            self._names.indices(batch.names, batch.name[rows]),
            batch.start_ns[rows],
            np.maximum(batch.end_ns[rows] - batch.start_ns[rows], 0),
            self._flags(batch.flags[rows], linkable, batch.event_id[rows]),
        )
        added = self._added
        try:
            self._finish_adding()
        except OUT_OF_MEMORY:  # before anything else is done, it is tried again
            pass
        return added

    def _finish_adding(self) -> None:
        """Keep what has to be known of the rows that were added last."""
        plan, added = self._adding, self._added
        if plan is None or not added:
            return
        part = plan.part(slice(added)) if added < len(plan.row) else plan
        rows = part.batch.take(part.row)
        self._units.note(part)
        self._owed = self._owed[~is_in(self._owed, rows.event_id)] if len(self._owed) else self._owed
        self._rows.add(rows)
        self._adding, self._added = None, 0
        self._note_links(part)

    def _flags(self, flags: NDArray[np.uint32], linkable: NDArray[np.bool_], event_id: Ids) -> NDArray[np.uint32]:
        flags = flags | np.where(linkable, np.uint32(LINKABLE), np.uint32(0))
        if len(self._owed):
            flags[is_in(event_id, self._owed)] |= np.uint32(EventFlag.SHOWN)
        return flags

    def full(self, plan: SpanPlan, added: int) -> list[Piece]:
        """The pieces of the unit that the last added row filled, if it did; of all where there are many names. They go on."""
        if len(self._names.values) > MAX_NAMES:
            pieces = self._decide(self._units.all(), {}, goes_on=True)
            self._names = Distinct([OTHER_NAME])
            return pieces
        number = int(self._units.numbers(plan.part(slice(added - 1, added)))[0]) if added else 0
        if not added or self._fold.rows([number])[0] < MAX_ROWS_OF_A_UNIT:
            return []
        return self._decide([self._units.of(number)], {}, goes_on=True)

    def due(self, finished: Iterable[StepTrace]) -> list[Piece]:
        """The pieces of all units to which nothing more can come.

        Args:
            finished: traces of ours that are complete; what was folded directly into one is noted there.
        """
        traces = {}
        for trace in finished:
            unit = self._units.of_trace(trace)
            if unit is not None and trace.folded is None:
                traces[unit] = trace
        units = [*traces, *self._units.ended(self._drained_ns, self._traces.open_spans())]
        units += self._units.oldest(MAX_UNITS)
        return self._decide(list(dict.fromkeys(units)), traces, goes_on=False)

    def rest(self, now_ns: int) -> None:
        """Nothing came for a while: what had ended by then has come."""
        self._drained_ns = max(self._drained_ns, now_ns)
        self._units.rest()

    def all(self, finished: Iterable[StepTrace]) -> list[Piece]:
        """The pieces of all units."""
        by_span = {trace.context.span_id: trace for trace in finished if trace.context is not None}
        units = self._units.all()
        found = [(unit, by_span.get(unit.above.span_id)) for unit in units]
        traces = {unit: trace for unit, trace in found if trace is not None and trace.folded is None}
        return self._decide(units, traces, goes_on=False)

    def note_gap(self) -> None:
        """Batches were lost."""
        self._units.note_gap()

    def _decide(self, units: list[OpenUnit], traces: Mapping[OpenUnit, StepTrace], *, goes_on: bool) -> list[Piece]:
        self._finish_adding()
        if not units:
            return []
        units, budgets = self._granted(units, traces, goes_on)
        numbers = numbers_of(units)
        rows = sum(self._fold.rows(numbers))
        done = self._fold.finish(numbers, budgets, [goes_on] * len(units))
        try:
            batch = self._rows.take(done.kept)
            if goes_on:
                done = self._with_open_roots(done, batch)
            return self._pieces(done, batch, units, traces, budgets)
        except OUT_OF_MEMORY:
            self.lost += rows
            raise
        finally:
            if not goes_on:
                self._units.forget(units)

    def _granted(
        self, units: list[OpenUnit], traces: Mapping[OpenUnit, StepTrace], goes_on: bool
    ) -> tuple[list[OpenUnit], list[int]]:
        """The units in the order in which they ended, and how many spans each may have."""
        rows = self._fold.rows(numbers_of(units))
        ends = [self._units.end_of(unit, count, traces.get(unit), goes_on) for unit, count in zip(units, rows, strict=True)]
        order = sorted(range(len(units)), key=[end.end_ns for end in ends].__getitem__)
        return [units[place] for place in order], [self._budgets.grant(ends[place]) for place in order]

    def _with_open_roots(self, done: FinishedUnits, batch: Batch) -> FinishedUnits:
        """What lies in nothing that is kept lies in its outermost range, if that is open: it will be kept when it comes."""
        lower = (done.kept_parent == 0) & (batch.parent != 0) & (batch.flags & EventFlag.ASYNC == 0)
        awaited = lower & self._units.is_open(batch.root)
        self._owed = distinct(np.concatenate([self._owed, batch.root[awaited]]))
        return done._replace(kept_parent=np.where(awaited, batch.root, done.kept_parent))

    def _pieces(
        self,
        done: FinishedUnits,
        batch: Batch,
        units: Sequence[OpenUnit],
        traces: Mapping[OpenUnit, StepTrace],
        budgets: Sequence[int],
    ) -> list[Piece]:
        own = span_ids(done.kept)
        extents = [Extent(*one) for one in zip(own.tolist(), batch.start_ns.tolist(), batch.end_ns.tolist(), strict=True)]
        told = Teller(done, self._known_of(done, units, traces, budgets), extents, self._names.values).told()
        self._note_spans(done, units, batch, own, {one.above.span_id: one.span_id for one in told.first})
        for place, attributes in told.on_unit.items():
            trace = traces[units[place]]
            trace.folded, trace.folded_ranges = attributes, int(done.path_count[_directly_in(done, place)].sum())
        folded = np.zeros(len(done.kept), np.int64)
        np.add.at(folded, done.path_holder[done.path_holder >= 0], done.path_count[done.path_holder >= 0])
        plan = self._plan(done, batch, units, own)
        return [SummarySpans(told.first), KeptSpans(plan, told.on_kept, folded, done.kept_forced), SummarySpans(told.rest)]

    def _known_of(
        self,
        done: FinishedUnits,
        units: Sequence[OpenUnit],
        traces: Mapping[OpenUnit, StepTrace],
        budgets: Sequence[int],
    ) -> list[Unit]:
        kept = np.bincount(done.kept_unit, minlength=len(units)).tolist()
        direct = np.bincount(done.path_unit[done.path_holder < 0], minlength=len(units)).tolist()
        known = []
        for place, unit in enumerate(units):
            tells_itself = unit in traces
            left = budgets[place] - kept[place] - (1 if direct[place] and not tells_itself else 0)
            known.append(Unit(unit.above, *self._units.extent_of(unit), max(0, left), tells_itself))
        return known

    def _plan(self, done: FinishedUnits, batch: Batch, units: Sequence[OpenUnit], own: Ids) -> SpanPlan:
        above = [unit.above for unit in units]
        above_id = np.array([span.span_id for span in above], np.uint64)
        parent_id = np.where(done.kept_parent != 0, span_ids(done.kept_parent), above_id[done.kept_unit])
        linked_id, linked_above = np.zeros(len(own), np.uint64), np.zeros(len(own), np.int64)
        for place, event_id in enumerate(done.kept.tolist() if self._links else ()):
            link = self._links.pop(event_id, None)
            if link is not None:
                linked_id[place], linked_above[place] = link[0], len(above)
                above.append(link[1])
        linked = np.flatnonzero(linked_id)
        found, (span,) = self._spans_of.find(linked_id[linked])
        outside = np.array([above[place].span_id for place in linked_above[linked].tolist()], np.uint64)
        linked_id[linked] = np.where(found, span, outside)
        row = np.arange(len(own))
        fate = np.full(len(own), Fate.IN_SPAN, np.uint8)
        return SpanPlan(batch, fate, row, own, parent_id, done.kept_unit, linked_id, linked_above, above)

    def _note_links(self, plan: SpanPlan) -> None:
        rows = np.flatnonzero(plan.linked_id)
        if not len(rows):
            return
        kept = set(self._fold.kept().tolist())
        ids = plan.batch.event_id[plan.row[rows]].tolist()
        for event_id, linked_id, above in zip(
            ids, plan.linked_id[rows].tolist(), plan.linked_above[rows].tolist(), strict=True
        ):
            if event_id in kept:
                self._links[event_id] = (linked_id, plan.spans_above[above])
        if len(self._links) > 2 * len(kept):
            self._links = {event_id: link for event_id, link in self._links.items() if event_id in kept}

    def _note_spans(
        self, done: FinishedUnits, units: Sequence[OpenUnit], batch: Batch, own: Ids, first: Mapping[int, int]
    ) -> None:
        """Remember which spans tell of the ranges that others may link to."""
        of_units = np.array([first.get(unit.above.span_id, unit.above.span_id) for unit in units], np.uint64)
        holder = done.linkable_holder
        held = np.where(holder >= 0, own[holder] if len(own) else np.uint64(0), of_units[done.linkable_unit])
        kept = own[(batch.sequence_nr >= 0) & (batch.scope != BACKWARD)]
        ids = np.concatenate([span_ids(done.linkable), kept])
        if len(ids):
            self._spans_of.add(by_id(ids, np.concatenate([held, kept])))


def _directly_in(done: FinishedUnits, unit: int) -> NDArray[np.bool_]:
    """The paths that were folded directly into a unit."""
    found: NDArray[np.bool_] = (done.path_unit == unit) & (done.path_holder < 0)
    return found
