"""From plans of spans to decided units: every range comes to its unit, and a unit goes out when nothing more can come to it.

plan ──► add ──► fold: the longest of each unit, sums of the rest ──► decide ──► DecidedUnits (decided.py)
         rows that are kept ──► KeptRows ──────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple

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
from otel_recfn.sinks.spans.budgets import Budgets, Grant, UnitEnd
from otel_recfn.sinks.spans.decided import DecidedUnits, KeptSpans, Piece, RootSpans, SummarySpans, roots_alone
from otel_recfn.sinks.spans.folded_sums import ToldOfKept, sums_of
from otel_recfn.sinks.spans.open_units import OpenUnit, OpenUnits, numbers_of
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
LEAST_SHARE = 1000
"""What took less than one in so many of its unit's time is no span of its own: a page of that unit shows nothing of it."""
MAX_LINKABLE = 1 << 17
MAX_NAMES = 1 << 16
"""A program may make a new name each step: when so many are known, all units are decided in part, and they are forgotten."""
BACKWARD = int(RecordScope.BACKWARD_FUNCTION)


class _Ended(NamedTuple):
    unit: OpenUnit
    end: UnitEnd


class _Granted(NamedTuple):
    unit: OpenUnit
    ranges: int
    grant: Grant


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

    def begin_batch(self, batch: Batch) -> None:
        """A batch comes."""
        self._drained_ns = max(self._drained_ns, batch.drained_ns)
        self._units.begin_batch(batch)

    def add(self, plan: SpanPlan) -> list[DecidedUnits]:
        """Add the spans of a plan to their units. Those that are full are decided in part, and go on."""
        self._rows.make_room()
        batch, sums = plan.batch, self._units.sums(plan)
        unit, name = self._units.numbers(plan, sums), self._names.by_index(batch.names, sums.name)
        first_row = self._rows.new_numbers(len(plan.row))
        ranges = PlannedRanges(batch, plan.row, plan.parent, plan.above, unit, name, self._owed)
        self._fold.add_planned(ranges, first_row)
        if len(self._owed):
            self._owed = self._owed[~is_in(self._owed, batch.event_id[plan.row])]
        self._rows.add(plan, first_row)
        self._units.note(plan, sums)
        if len(self._names.values) > MAX_NAMES:
            decided = self._decide(self._units.all(), {}, goes_on=True)
            self._names = Distinct([OTHER_NAME])
            return decided
        return self._decide(self._full(distinct(unit[sums.rows > 0]).tolist()), {}, goes_on=True)

    def _full(self, numbers: Sequence[int]) -> list[OpenUnit]:
        """Those of these units that have many rows."""
        rows = zip(numbers, self._fold.rows(numbers), strict=True)
        return [self._units.of(number) for number, count in rows if count >= MAX_ROWS_OF_A_UNIT]

    def due(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """All units to which nothing more can come.

        Args:
            finished: traces of ours that are complete; what was folded directly into one is noted there.
        """
        traces = self._traces_of_units(finished)
        units = [*traces, *self._units.ended(self._drained_ns, self._traces.open_spans())]
        units += self._surplus(set(units))
        return self._decide(list(dict.fromkeys(units)), traces, goes_on=False) + roots_alone(finished, traces.values())

    def all(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """All units, and the roots of these traces."""
        traces = self._traces_of_units(finished)
        return self._decide(self._units.all(), traces, goes_on=False) + roots_alone(finished, traces.values())

    def _traces_of_units(self, finished: Iterable[StepTrace]) -> dict[OpenUnit, StepTrace]:
        found = [(self._units.of_trace(trace), trace) for trace in finished]
        return {unit: trace for unit, trace in found if unit is not None}

    def _surplus(self, ended: Set[OpenUnit]) -> list[OpenUnit]:
        """Units that rows came to longest ago, where there are too many, or too many rows may be kept of them all."""
        if len(self._rows) <= MAX_KEPT:
            return self._units.oldest(MAX_UNITS)
        units = [unit for unit in self._units.oldest(0) if unit not in ended]
        kept = [min(rows, self._most_held) for rows in self._fold.rows(numbers_of(units))]
        of_newer = [*accumulate(reversed(kept))][::-1]
        return [unit for unit, rows in zip(units, of_newer, strict=True) if rows > MAX_KEPT]

    def note_drained(self, drained_ns: int) -> None:
        """What had ended by then has come."""
        self._drained_ns = max(self._drained_ns, drained_ns)

    def rest(self) -> None:
        """No batch came for a while."""
        self._units.rest()

    def _decide(self, units: Sequence[OpenUnit], traces: Mapping[OpenUnit, StepTrace], *, goes_on: bool) -> list[DecidedUnits]:
        """In the order in which they ended, ordinary ones apart."""
        ended = sorted([self._end_of(unit, traces, goes_on) for unit in units], key=attrgetter("end.end_ns"))
        granted = [_Granted(one.unit, one.end.ranges, self._budgets.grant(one.end)) for one in ended]
        parts = [list(part) for _, part in groupby(granted, attrgetter("grant.is_ordinary"))]
        decided = [self._decided(part, traces, goes_on) for part in parts]
        if not goes_on:
            self._units.forget(units)
        return decided

    def _end_of(self, unit: OpenUnit, traces: Mapping[OpenUnit, StepTrace], goes_on: bool) -> _Ended:
        ranges = self._fold.rows([unit.number])[0]
        return _Ended(unit, self._units.end_of(unit, ranges, traces.get(unit), goes_on))

    def _decided(self, part: Sequence[_Granted], traces: Mapping[OpenUnit, StepTrace], goes_on: bool) -> DecidedUnits:
        units, budgets = [one.unit for one in part], [one.grant.spans for one in part]
        known = self._known_of(units, traces, budgets)
        done = self._fold.finish(numbers_of(units), budgets, known.least_ns.tolist(), [goes_on] * len(units))
        known = known._replace(budget=known.budget - np.bincount(done.kept_unit, minlength=len(units)))
        kept = self._rows.take(done.kept_row)
        if goes_on:
            done = self._with_open_roots(done, kept.batch)
        pieces = self._pieces(done, kept, units, traces, known)
        roots = [traces[unit] for unit in units if unit in traces]
        return DecidedUnits([RootSpans(roots), *pieces], sum([one.ranges for one in part]), part[0].grant.is_ordinary)

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
        known: UnitsToTell,
    ) -> list[Piece]:
        batch, own, names = ranges.batch, span_ids(done.kept), self._names.values
        told = told_of(done, KeptExtents(batch.start_ns, batch.end_ns), known)
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

    def _known_of(self, units: Sequence[OpenUnit], traces: Mapping[OpenUnit, StepTrace], budgets: Sequence[int]) -> UnitsToTell:
        tells_itself = np.array([unit in traces for unit in units], np.uint8)
        start_ns, end_ns = np.array([self._units.extent_of(unit) for unit in units], np.int64).T
        return UnitsToTell(start_ns, end_ns, np.array(budgets, np.int64), (end_ns - start_ns) // LEAST_SHARE, tells_itself)

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
