"""From a plan of spans to a plan of few: every range comes to its unit, and a unit's spans go out when it is decided.

plan ──► add ──► fold: the longest of each unit, sums of the rest ──► decide ──► pieces of spans (outgoing.py)
         rows that are kept ──► KeptRows ──────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate

import numpy as np

from otel_recfn.batches.distinct import Distinct
from otel_recfn.batches.fold.finished import FinishedUnits, Ids
from otel_recfn.batches.fold.kept_rows import KeptRanges, KeptRows
from otel_recfn.batches.fold.told import KeptExtents, Told, UnitsToTell, told_of
from otel_recfn.batches.fold.units import MOST_WAITING, Fold, PlannedRanges
from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.batches.remembered import Remembered, by_id
from otel_recfn.batches.span_plan import Fate, SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING
from otel_recfn.model.scope import RecordScope
from otel_recfn.sinks.spans.budgets import Budgets
from otel_recfn.sinks.spans.folded_sums import ToldOfKept, sums_of
from otel_recfn.sinks.spans.open_units import OpenUnit, OpenUnits, numbers_of
from otel_recfn.sinks.spans.outgoing import KeptSpans, Piece, SummarySpans
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.summaries import Summaries
from otel_recfn.sinks.spans.trace_boundaries import StepTrace
from otel_recfn.support.span_ids import event_ids, span_ids

OTHER_NAME = "(other)"
MAX_UNITS = 4096
MAX_KEPT = 1 << 18
"""Of all units together, some 500 bytes each: beyond, those that rows came to longest ago are decided before they end."""
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
        self._most_held = most + max(MOST_WAITING, 4 * most)
        self._fold = Fold(most, min_duration_ns, self._most_held - most)
        self._names: Distinct[str] = Distinct([OTHER_NAME])
        self._rows = KeptRows(self._fold.kept)
        self._spans_of = Remembered(MAX_LINKABLE, columns=2)
        """Of ranges that others may link to, by their event id, which needs no working out: the span that tells of them."""
        self._owed: Ids = np.zeros(0, np.uint64)
        """Outermost ranges that haven't come, and have spans below them that were handed on."""
        self._drained_ns = 0
        self.free_spans = 0
        """How many spans decided units have in any case, one each; whoever sends spans takes them from here."""

    def begin_batch(self, batch: Batch) -> None:
        """A batch comes."""
        self._drained_ns = max(self._drained_ns, batch.drained_ns)
        self._units.begin_batch(batch)

    def add(self, plan: SpanPlan) -> list[Piece]:
        """Add the spans of a plan to their units. The pieces of those that are full now, or of all where there are many names;
        these units go on."""
        self._rows.make_room()
        batch, sums = plan.batch, self._units.sums(plan)
        unit, name = self._units.numbers(plan, sums), self._names.by_index(batch.names, sums.name)
        first_row = self._rows.new_numbers(len(plan.row))
        self._fold.add_planned(PlannedRanges(batch, plan.row, plan.parent, plan.above, unit, name, self._owed), first_row)
        self._rows.add(plan, first_row)
        self._units.note(plan, sums)
        if len(self._owed):
            self._owed = self._owed[~is_in(self._owed, batch.event_id[plan.row])]
        if len(self._names.values) > MAX_NAMES:
            pieces = self._decide(self._units.all(), {}, goes_on=True)
            self._names = Distinct([OTHER_NAME])
            return pieces
        numbers = unit[sums.rows > 0].tolist()
        rows = zip(numbers, self._fold.rows(numbers), strict=True)
        return self._decide([self._units.of(number) for number, count in rows if count >= MAX_ROWS_OF_A_UNIT], {}, goes_on=True)

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
        units += self._surplus(set(units))
        return self._decide(list(dict.fromkeys(units)), traces, goes_on=False)

    def _surplus(self, ended: Set[OpenUnit]) -> list[OpenUnit]:
        """Units that rows came to longest ago, where there are too many, or too many rows may be kept of them all."""
        if len(self._rows) <= MAX_KEPT:
            return self._units.oldest(MAX_UNITS)
        units = [unit for unit in self._units.oldest(0) if unit not in ended]
        kept = [min(rows, self._most_held) for rows in self._fold.rows(numbers_of(units))]
        of_newer = [*accumulate(reversed(kept))][::-1]
        return [unit for unit, rows in zip(units, of_newer, strict=True) if rows > MAX_KEPT]

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
        if not units:
            return []
        units, budgets = self._granted(units, traces, goes_on)
        done = self._fold.finish(numbers_of(units), budgets, [goes_on] * len(units))
        self.free_spans += len(units)
        if not goes_on:
            self._units.forget(units)
        kept = self._rows.take(done.kept_row)
        if goes_on:
            done = self._with_open_roots(done, kept.batch)
        return self._pieces(done, kept, units, traces, budgets)

    def _granted(
        self, units: list[OpenUnit], traces: Mapping[OpenUnit, StepTrace], goes_on: bool
    ) -> tuple[list[OpenUnit], list[int]]:
        """The units in the order in which they ended, with how many spans each may have."""
        rows = self._fold.rows(numbers_of(units))
        ends = [self._units.end_of(unit, count, traces.get(unit), goes_on) for unit, count in zip(units, rows, strict=True)]
        order = sorted(range(len(units)), key=lambda place: ends[place].end_ns)
        return [units[place] for place in order], [self._budgets.grant(ends[place]) for place in order]

    def _with_open_roots(self, done: FinishedUnits, batch: Batch) -> FinishedUnits:
        """What lies in nothing that is kept lies in its outermost range, if that is open: it will be kept when it comes."""
        lower = (done.kept_parent == 0) & (batch.parent != 0) & (batch.flags & OVERLAPPING == 0)
        awaited = lower & self._units.is_open(batch.root)
        self._owed = distinct(np.concatenate([self._owed, batch.root[awaited]]))
        return done._replace(kept_parent=np.where(awaited, batch.root, done.kept_parent))

    def _pieces(
        self,
        done: FinishedUnits,
        ranges: KeptRanges,
        units: Sequence[OpenUnit],
        traces: Mapping[OpenUnit, StepTrace],
        budgets: Sequence[int],
    ) -> list[Piece]:
        batch, own, names = ranges.batch, span_ids(done.kept), self._names.values
        told = told_of(done, KeptExtents(batch.start_ns, batch.end_ns), self._known_of(done, units, traces, budgets))
        summaries = Summaries(done, told, own, [unit.above for unit in units], names)
        in_kept = told.holder >= 0
        self._note_spans(done, units, batch, own, told, summaries)
        if traces:
            self._tell_traces(told, units, traces)
        folded = np.zeros(len(done.kept), np.int64)
        folded[told.holder[in_kept]] = told.ranges[in_kept]
        first = int((told.sums >= 0).sum())
        kept = KeptSpans(self._plan(done, ranges, units), ToldOfKept(told, names, len(folded)), folded)
        return [SummarySpans(summaries, 0, first), kept, SummarySpans(summaries, first, len(summaries))]

    def _tell_traces(self, told: Told, units: Sequence[OpenUnit], traces: Mapping[OpenUnit, StepTrace]) -> None:
        """Note what was folded directly into traces of ours, whose roots tell it."""
        places = np.flatnonzero(told.holder < 0)
        columns = (told.unit[places].tolist(), told.ranges[places].tolist())
        for attributes, unit, ranges in zip(sums_of(told, places, self._names.values), *columns, strict=True):
            trace = traces.get(units[unit])
            if trace is not None:
                trace.folded, trace.folded_ranges = attributes, ranges

    def _known_of(
        self,
        done: FinishedUnits,
        units: Sequence[OpenUnit],
        traces: Mapping[OpenUnit, StepTrace],
        budgets: Sequence[int],
    ) -> UnitsToTell:
        kept = np.bincount(done.kept_unit, minlength=len(units))
        tells_itself = np.array([unit in traces for unit in units], np.uint8)
        start_ns, end_ns = np.array([self._units.extent_of(unit) for unit in units], np.int64).T
        return UnitsToTell(start_ns, end_ns, np.array(budgets, np.int64) - kept, tells_itself)

    def _plan(self, done: FinishedUnits, ranges: KeptRanges, units: Sequence[OpenUnit]) -> SpanPlan:
        above = [*[unit.above for unit in units], *ranges.spans]
        row = np.arange(len(done.kept))
        fate = np.full(len(row), int(Fate.IN_SPAN), np.uint8)  # as a member it takes thrice as long
        linked_id, linked_above = self._told_by(ranges), ranges.linked_above + len(units)
        return SpanPlan(ranges.batch, fate, row, done.kept_parent, done.kept_unit, linked_id, linked_above, above)

    def _told_by(self, ranges: KeptRanges) -> Ids:
        """The spans that tell of what is linked to; of what isn't known any more, the one above it."""
        linked = np.flatnonzero(ranges.linked_id)
        if not len(linked):
            return ranges.linked_id
        found, (span,) = self._spans_of.find(event_ids(ranges.linked_id[linked]))
        above_id = np.array([span.span_id for span in ranges.spans], np.uint64)
        linked_id: Ids = ranges.linked_id.copy()
        linked_id[linked] = np.where(found, span, above_id[ranges.linked_above[linked]])
        return linked_id

    def _note_spans(
        self, done: FinishedUnits, units: Sequence[OpenUnit], batch: Batch, own: Ids, told: Told, summaries: Summaries
    ) -> None:
        """Remember which spans tell of the ranges that others may link to."""
        can_be_linked = (batch.sequence_nr >= 0) & (batch.scope != BACKWARD)
        if not len(done.linkable) and not can_be_linked.any():
            return
        of_units = np.array([unit.above.span_id for unit in units], np.uint64)
        in_units = told.sums >= 0
        of_units[told.unit[told.sums[in_units]]] = summaries.span_id[in_units]
        holder = done.linkable_holder
        held = np.where(holder >= 0, own[holder] if len(own) else np.uint64(0), of_units[done.linkable_unit])
        ids = np.concatenate([done.linkable, done.kept[can_be_linked]])
        self._spans_of.add(by_id(ids, np.concatenate([held, own[can_be_linked]])))
