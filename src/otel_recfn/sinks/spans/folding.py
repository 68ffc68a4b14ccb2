"""From batches to decided units: every range comes to its unit, and a unit goes out when nothing more can come to it.

batch ──► Stage.add: planned, linked, folded ──► OpenUnits: what is known of each
units that have ended ──► Budgets: how many spans each may have ──► Stage.decide ──► DecidedUnits (decided.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.stage import MOST_WAITING, Added, Decided, Stage, UnitToDecide
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.budgets import Budgets, Grant, UnitEnd
from otel_recfn.sinks.spans.decided import ROOT_BYTES, DecidedUnits, KeptSpans, Piece, RootSpans, SummarySpans, roots_alone
from otel_recfn.sinks.spans.open_units import OpenUnit, OpenUnits
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.summaries import Summaries, ToldOfKept, sums_of
from otel_recfn.sinks.spans.trace_boundaries import StepTrace

MAX_UNITS = 4096
MAX_KEPT = 1 << 18
"""Of all units together, some 500 bytes each: beyond, those that rows came to longest ago are decided before they end."""
MAX_ROWS_OF_A_UNIT = 100_000
"""A unit that stays open is decided in parts of so many rows."""


ROWS_AT_ONCE = 1 << 15
"""Where each range is a span: so many wait as one unit."""


class _Granted(NamedTuple):
    unit: OpenUnit
    end: UnitEnd
    grant: Grant


class Folding:
    """Of one sink.

    Args:
        budgets: how many spans units may have.
        most: spans of a unit.
        units: the open ones.
        traces: of our own.
    """

    def __init__(self, budgets: Budgets, most: int, units: OpenUnits, traces: StepTraces) -> None:
        self._budgets, self._units, self._traces = budgets, units, traces
        self._most_held = most + max(MOST_WAITING, 4 * most)
        self._stage = Stage(most, self._most_held - most)
        self._drained_ns = 0

    def add(self, batch: Batch, roots: Mapping[int, SpanContext]) -> tuple[Added, list[DecidedUnits]]:
        """Add a batch's ranges to their units. Those that are full are decided in part, and go on.

        Args:
            batch: the batch.
            roots: the root span of ours above outermost ranges without a span around them, where that trace is recorded.
        """
        self._drained_ns = max(self._drained_ns, batch.drained_ns)
        added = self._stage.add(batch, roots)
        touched = self._units.note(added.units)
        if self._stage.has_many_names:
            decided = self._decide(self._units.all(), {}, goes_on=True)
            self._stage.forget_names()
            return added, decided
        return added, self._decide([unit for unit in touched if unit.rows >= MAX_ROWS_OF_A_UNIT], {}, goes_on=True)

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
        if self._stage.waiting <= MAX_KEPT:
            return self._units.oldest(MAX_UNITS)
        units = [unit for unit in self._units.oldest(0) if unit not in ended]
        kept = [min(unit.rows, self._most_held) for unit in units]
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
        ends = [(unit, self._units.end_of(unit, traces.get(unit), goes_on)) for unit in units]
        ended = sorted(ends, key=lambda one: one[1].end_ns)
        granted = [_Granted(unit, end, self._budgets.grant(end)) for unit, end in ended]
        parts = [list(part) for _, part in groupby(granted, attrgetter("grant.is_ordinary"))]
        decided = [self._decided(part, traces, goes_on) for part in parts]
        self._units.forget(units, goes_on=goes_on)
        return decided

    def _decided(self, part: Sequence[_Granted], traces: Mapping[OpenUnit, StepTrace], goes_on: bool) -> DecidedUnits:
        units, ranges = [one.unit for one in part], sum(one.end.ranges for one in part)
        wanted = [
            UnitToDecide(one.unit.above, one.grant.spans, *self._units.extent_of(one.unit), goes_on, one.unit in traces)
            for one in part
        ]
        done = self._stage.decide(wanted, ranges)
        if traces:
            self._tell_traces(done, units, traces)
        summaries = Summaries(done)
        first = int((done.summaries["sums"] >= 0).sum())
        roots = RootSpans([traces[unit] for unit in units if unit in traces])
        kept = KeptSpans(done.plan, ToldOfKept(done), done.folded)
        pieces: list[Piece] = [roots, SummarySpans(summaries, 0, first), kept, SummarySpans(summaries, first, len(summaries))]
        return DecidedUnits(pieces, ranges, done.nbytes + len(roots) * ROOT_BYTES, part[0].grant.is_ordinary)

    def _tell_traces(self, done: Decided, units: Sequence[OpenUnit], traces: Mapping[OpenUnit, StepTrace]) -> None:
        """Note what was folded directly into traces of ours, whose roots tell it."""
        places = np.flatnonzero(done.sums["holder"] < 0)
        columns = (done.sums["unit"][places].tolist(), done.sums["ranges"][places].tolist())
        for attributes, unit, ranges in zip(sums_of(done, places), *columns, strict=True):
            trace = traces.get(units[unit])
            if trace is not None:
                trace.folded, trace.folded_ranges = attributes, ranges


class EveryRange:
    """In place of ``Folding``, where units have no budget."""

    def __init__(self) -> None:
        self._stage = Stage(budget=0)
        self._names: Sequence[str] = ()
        self._named = 0
        """How many names batches had until now, of the list that they share."""

    def add(self, batch: Batch, roots: Mapping[int, SpanContext]) -> tuple[Added, list[DecidedUnits]]:
        """All of it, in the order of the rows' ends, so many at a time."""
        plan, added = self._stage.plan(batch, roots)
        if len(plan.row) < len(batch):  # what waits is to keep nothing of the others
            plan = plan._replace(batch=batch.take(plan.row), row=np.arange(len(plan.row)))
        parts = [plan.part(slice(first, first + ROWS_AT_ONCE)) for first in range(0, added.planned, ROWS_AT_ONCE)]
        nbytes = plan.column_bytes + self._new_texts(batch.names)
        return added, [DecidedUnits([KeptSpans(one)], len(one.row), nbytes * len(one.row) // added.planned) for one in parts]

    def _new_texts(self, names: Sequence[str]) -> int:
        """What the names take that no batch had before."""
        known = self._named if names is self._names else 0
        self._names, self._named = names, len(names)
        return sum(map(len, names[known : self._named]))

    def note_drained(self, drained_ns: int) -> None:
        """Nothing waits for it."""

    def rest(self) -> None:
        """Nothing waits for it."""

    def due(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """The roots of traces that are complete."""
        return roots_alone(finished, ())

    def all(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """The same: nothing else is left."""
        return roots_alone(finished, ())
