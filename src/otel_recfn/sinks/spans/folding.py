"""From batches to decided units: every range comes to its unit, and a unit goes out when nothing more can come to it.

batch ──► Stage.add: planned, linked, folded ──► OpenUnits: what is known of each
units that have ended ──► Budgets: how many spans each may have ──► Stage.decide ──► DecidedUnits (sender.py)

A unit is decided when nothing more can come: the program's span has ended before the last drain began, and no outermost range
that was announced below it is open; a root of ours when its trace is complete. Below a span whose end can't be seen (a remote
one, or one of the process that this one was forked from) a unit is decided when a batch had nothing of it, or at 2,000 rows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.stage import MOST_WAITING, Added, Decided, Stage, UnitInBatch, UnitToDecide
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.budgets import Budgets, Grant, UnitEnd
from otel_recfn.sinks.spans.mapping import sums_of
from otel_recfn.sinks.spans.sender import ROOT_BYTES, DecidedUnits
from otel_recfn.sinks.spans.step_traces import StepTrace, StepTraces
from otel_recfn.sinks.spans.surroundings import ProgramSpans, SpanEnd

NEVER = (1 << 63) - 1
MOST_ROWS_UNSEEN = 2000
"""Of a unit below a span whose end can't be seen."""


@dataclass(eq=False, slots=True)
class OpenUnit:
    """A unit that isn't decided."""

    above: SpanContext
    key: tuple[int, int]
    """Trace id and span id of the span above."""
    first_ns: int = NEVER
    last_ns: int = 0
    failed: bool = False
    """A range of it was left by an exception."""
    rows: int = 0
    """That came since its last part."""
    open: int = 0
    """How many announced outermost ranges haven't ended."""
    touched: int = 0
    """The number of the last batch that had rows of it."""
    ended_ns: int = NEVER
    """When the program's span had certainly ended: a program may give it an end that is still to come."""
    end: SpanEnd | None = None
    """How the program's span ended, once it was seen to have."""


class OpenUnits:
    """Of one sink.

    Args:
        spans: the program's.
    """

    def __init__(self, spans: ProgramSpans) -> None:
        self._spans = spans
        self._units: dict[tuple[int, int], OpenUnit] = {}
        self._batches = 0

    def __len__(self) -> int:
        return len(self._units)

    def rest(self) -> None:
        """No batch came for a while."""
        self._batches += 1

    def note(self, units: Iterable[UnitInBatch]) -> list[OpenUnit]:
        """A batch came: note what it tells of its units, which are returned."""
        self._batches += 1
        touched = []
        for told in units:
            key = (told.above.trace_id, told.above.span_id)
            unit = self._units.get(key)
            if unit is None:
                unit = self._units[key] = OpenUnit(told.above, key, touched=self._batches)
            unit.open += told.begun
            touched.append(unit)
            if not told.rows:
                continue
            unit.touched = self._batches
            unit.first_ns, unit.last_ns = min(unit.first_ns, told.first_ns), max(unit.last_ns, told.last_ns)
            unit.open, unit.rows = max(0, unit.open - told.outermost), unit.rows + told.rows
            unit.failed = unit.failed or told.failed > 0
        return touched

    def of_trace(self, trace: StepTrace) -> OpenUnit | None:
        """The unit of a trace of ours, if ranges came to it."""
        context = trace.context
        return self._units.get((context.trace_id, context.span_id)) if context is not None else None

    def ended(self, drained_ns: int, roots: Collection[int]) -> list[OpenUnit]:
        """The units to which nothing more can come.

        Args:
            drained_ns: when the last drain began.
            roots: span ids of our roots whose traces aren't complete.
        """
        found = []
        for unit in [one for one in self._units.values() if not one.open]:
            span = self._end(unit)
            if span is not None:
                unit.ended_ns = min(unit.ended_ns, time.time_ns(), NEVER if span.end_ns is None else span.end_ns)
                has_ended = unit.ended_ns < drained_ns
            else:
                is_over = unit.touched < self._batches or unit.rows >= MOST_ROWS_UNSEEN
                has_ended = is_over and unit.above.span_id not in roots and self._spans.find(*unit.key) is None
            if has_ended:
                found.append(unit)
        return found

    def oldest(self, most: int) -> list[OpenUnit]:
        """Those that rows came to longest ago, if there are more than ``most``."""
        surplus = len(self._units) - most
        return sorted(self._units.values(), key=attrgetter("touched"))[:surplus] if surplus > 0 else []

    def all(self) -> list[OpenUnit]:
        """Every unit."""
        return list(self._units.values())

    def forget(self, units: Iterable[OpenUnit], *, goes_on: bool) -> None:
        """They are decided, or the rows that came until now."""
        for unit in units:
            unit.rows = 0
            if not goes_on:
                self._units.pop(unit.key, None)
                self._spans.forget(*unit.key)

    def end_of(self, unit: OpenUnit, trace: StepTrace | None, goes_on: bool) -> UnitEnd:
        """What is known of a unit at its end."""
        of_span, ranges = unit.key, unit.rows
        if trace is not None:
            duration = None if goes_on else trace.end_ns - trace.start_ns
            return UnitEnd(*of_span, trace.name, duration, unit.failed, unit.last_ns, ranges, trace.aside)
        span = self._end(unit)
        if span is None:
            duration = None if goes_on else max(0, unit.last_ns - unit.first_ns)
            return UnitEnd(*of_span, "", duration, unit.failed, unit.last_ns, ranges)
        start_ns, end_ns = self.extent_of(unit)
        ended_ns = max(unit.last_ns, min(end_ns, unit.ended_ns))
        return UnitEnd(*of_span, span.name, end_ns - start_ns, unit.failed or span.failed, ended_ns, ranges)

    def extent_of(self, unit: OpenUnit) -> tuple[int, int]:
        """From when to when the unit goes, in Unix nanoseconds."""
        span = self._end(unit)
        start_ns = span.start_ns if span is not None else None
        end_ns = span.end_ns if span is not None else None
        return unit.first_ns if start_ns is None else start_ns, unit.last_ns if end_ns is None else end_ns

    def _end(self, unit: OpenUnit) -> SpanEnd | None:
        if unit.end is None:
            unit.end = self._spans.end_of(*unit.key)
        return unit.end


MAX_UNITS = 4096
MAX_KEPT = 1 << 18
"""Of all units together, some 500 bytes each: beyond, those that rows came to longest ago are decided before they end."""
MAX_ROWS_OF_A_UNIT = 100_000
"""A unit that stays open is decided in parts of so many rows."""


def roots_alone(finished: Sequence[StepTrace], sent: Collection[StepTrace]) -> list[DecidedUnits]:
    """The roots of finished traces that are not sent with a unit."""
    others = [trace for trace in finished if trace not in sent]
    return [DecidedUnits(roots=others, nbytes=len(others) * ROOT_BYTES)] if others else []


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

    def due(self, finished: Sequence[StepTrace], drained_ns: int, rests: bool) -> list[DecidedUnits]:
        """All units to which nothing more can come.

        Args:
            finished: traces of ours that are complete; what was folded directly into one is noted there.
            drained_ns: what had ended by then has come.
            rests: no batch came for a while.
        """
        self._drained_ns = max(self._drained_ns, drained_ns)
        if rests:
            self._units.rest()
        traces = self._traces_of_units(finished)
        units = [*traces, *self._units.ended(self._drained_ns, self._traces.open_spans())]
        units += self._surplus(set(units))
        return self._decide(list(dict.fromkeys(units)), traces, goes_on=False) + roots_alone(finished, set(traces.values()))

    def all(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """All units, and the roots of these traces."""
        traces = self._traces_of_units(finished)
        return self._decide(self._units.all(), traces, goes_on=False) + roots_alone(finished, set(traces.values()))

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
        roots = [traces[unit] for unit in units if unit in traces]
        beside = [told for told in (done.folded, done.sums, done.top, done.summaries, done.counts) if len(told)]
        nbytes = done.plan.nbytes([*done.plan.batch.names, *done.names.values()], beside) + len(roots) * ROOT_BYTES
        return DecidedUnits(done.plan, done, roots, ranges, part[0].grant.is_ordinary, nbytes=nbytes)

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
        nbytes = plan.nbytes(self._new_texts(batch.names))
        return added, [DecidedUnits(one, ranges=len(one.row), nbytes=nbytes * len(one.row) // added.planned) for one in parts]

    def _new_texts(self, names: Sequence[str]) -> Sequence[str]:
        """The names that no batch had before."""
        known = self._named if names is self._names else 0
        self._names, self._named = names, len(names)
        return names[known : self._named]

    def due(self, finished: Sequence[StepTrace], drained_ns: int, rests: bool) -> list[DecidedUnits]:
        """The roots of traces that are complete."""
        del drained_ns, rests  # nothing waits for them
        return roots_alone(finished, ())

    def all(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """The same: nothing else is left."""
        return roots_alone(finished, ())
