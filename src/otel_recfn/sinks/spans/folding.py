"""Assigns the ranges of batches to units, and decides each unit when nothing more can come to it.

    batch ──► Stage.add: planned, linked, folded; the stage has the ranges of open units
    spans that have ended ──► Stage.end_span (open_units.py)
        ──► Stage.due: summaries of units ──► Budgets: how many spans each may have
    grants ──► Stage.decide: tables for a mapper ──► DecidedUnits (unit_decision.py)

Nothing more can come to a unit below a span of the program's when that span had ended before the
last drain began, and no outermost range that was announced below it is open; to one below a root of
ours when its trace is complete. The end of some spans can't be seen: of a remote one, or one of the
process that this one was forked from. A unit below such a span is decided when a batch has none of
its ranges, or at 2,000 rows. A flush decides the other units in part, and they continue.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanContext

from otel_recfn.batches.stage import MAX_WAITING, Added, OwnRoot, Stage
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.budgets import Budgets, Grant, UnitEnd, Volume
from otel_recfn.sinks.spans.open_units import OpenUnits
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.request_batches import RequestBatches
from otel_recfn.sinks.spans.sender import DecidedUnits, roots_alone
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.unit_decision import decide_units, take_part

if TYPE_CHECKING:
    from otel_recfn._native import UnitSummary

MAX_ROWS_UNSEEN = 2000
"""The rows of a unit below a span whose end can't be seen, before it is decided."""
MAX_UNITS = 4096
MAX_ROWS = 1 << 18
"""The most rows that wait for all units, some 500 bytes each; beyond, units that had no rows for
longest are decided.
"""
MAX_UNIT_ROWS = 100_000
"""The rows after which a unit that stays open is decided in part."""
MAX_NAMES = 1 << 17
"""The most names that the stage knows; beyond, units are decided in part, and it forgets the
names.
"""


class Folding:
    """The open units of one sink.

    Args:
        limit: the most spans of a unit.
        volume: the settings of the budgets.
        spans: the program's spans.
        traces: the traces that we start.
        batches: those of requests, which get the sums of their units.
    """

    def __init__(
        self,
        limit: int,
        volume: Volume,
        spans: ProgramSpans,
        traces: StepTraces,
        batches: RequestBatches,
    ) -> None:
        self._budgets = Budgets(limit, volume)
        self._spans = spans
        self._batches = batches
        self._stage = Stage(
            limit,
            max(MAX_WAITING, 4 * limit),
            torch_names=volume.torch_names,
            max_units=MAX_UNITS,
            max_rows=MAX_ROWS,
            many_rows=MAX_ROWS_UNSEEN,
        )
        self._units = OpenUnits(self._stage, spans, traces)

    def add(
        self, batch: Batch, roots: Sequence[OwnRoot], *, continues: bool = False
    ) -> tuple[Added, list[DecidedUnits]]:
        """Add a batch's ranges to their units.

        Units that are full are decided in part, and continue.

        Args:
            batch: a batch, or a part of one.
            roots: the roots of recorded traces of ours, in ascending order.
            continues: it is a part of the same batch as the last one.
        """
        added = self._stage.add(batch, roots, continues=continues)
        self._units.add(added.new_units, batch, roots)
        if added.names > MAX_NAMES:
            self._stage.add_nodes()  # a node that waited longer would have a forgotten name
            decided = self._decide_parts()
            self._stage.forget_names()
            return added, decided
        is_full = added.largest_unit_rows >= MAX_UNIT_ROWS
        return added, self._decide_parts(min_rows=MAX_UNIT_ROWS) if is_full else []

    def has_unit(self, span: SpanContext) -> bool:
        """Whether the unit below a span is open."""
        return self._stage.find(span) is not None

    def due(
        self,
        finished: Sequence[StepTrace],
        drained_ns: int = 0,
        *,
        is_idle: bool = False,
        flushes: bool = False,
        ends: bool = False,
    ) -> list[DecidedUnits]:
        """Decide all units to which nothing more can come.

        Args:
            finished: traces of ours that are complete. Each gets the sums of what was folded
                directly into it.
            drained_ns: all ranges that had ended by then have come.
            is_idle: no batch came for a while.
            flushes: the other units are decided, too, in part.
            ends: nothing more comes to any unit.
        """
        if is_idle:
            self._stage.note_idle()
        without_unit = [trace for trace in finished if not self._units.finish(trace)]
        for unit in self._units.report_ended_spans():
            self._stage.finish(unit)
        due = self._stage.due(drained_ns, time.time_ns())
        decided = self._decide(self._stage.units() if ends else due, is_partial=False)
        if flushes:
            decided += self._decide(self._stage.units(min_rows=1), is_partial=True, is_cut=True)
        return decided + ([roots_alone(without_unit)] if without_unit else [])

    def _decide_parts(self, min_rows: int = 0) -> list[DecidedUnits]:
        """Decide the units in part that have so many rows."""
        self._units.report_ended_spans()
        return self._decide(self._stage.units(min_rows=min_rows), is_partial=True)

    def _decide(
        self, units: Sequence[UnitSummary], *, is_partial: bool, is_cut: bool = False
    ) -> list[DecidedUnits]:
        """Decide units in the order in which they ended.

        ``is_cut``: a flush decides them in part.
        """
        in_order = sorted(units, key=attrgetter("last_ns"))
        granted = [
            (unit, self._budgets.grant(self._unit_end(unit, is_partial, is_cut)))
            for unit in in_order
        ]
        # Separately, because a full queue drops ordinary units first.
        decided = [
            self._decide_alike(list(alike), is_partial, is_ordinary)
            for is_ordinary, alike in groupby(granted, lambda pair: pair[1].is_ordinary)
        ]
        for unit in units if not is_partial else ():
            self._units.forget(unit.unit)
        return decided

    def _unit_end(self, unit: UnitSummary, is_partial: bool, is_cut: bool) -> UnitEnd:
        """The state of a unit at its decision."""
        objects = self._units[unit.unit]
        trace = objects.trace
        duration_ns: int | None = unit.end_ns - unit.start_ns
        if trace is not None:
            duration_ns = trace.end_ns - trace.start_ns
        elif is_partial and not unit.has_ended:
            duration_ns = None
        return UnitEnd(
            key=objects.key,
            name=trace.name if trace is not None else objects.name,
            duration_ns=duration_ns,
            failed=unit.failed,
            end_ns=unit.last_ns,
            ranges=unit.rows,
            in_worker=trace is not None and trace.in_worker,
            is_cut=is_cut,
        )

    def _decide_alike(
        self, granted: Sequence[tuple[UnitSummary, Grant]], is_partial: bool, is_ordinary: bool
    ) -> DecidedUnits:
        """Decide units that are all ordinary or all not, each with its grant."""
        parts = [
            take_part(unit, self._units[unit.unit], grant, is_partial=is_partial)
            for unit, grant in granted
        ]
        return decide_units(
            self._stage,
            parts,
            self._spans,
            self._batches,
            is_partial=is_partial,
            is_ordinary=is_ordinary,
        )
