"""Assigns the ranges of batches to units, and decides each unit when nothing more can come to it.

    batch ──► Stage.add: planned, linked, folded; the stage has the ranges of open units
    spans that have ended ──► Stage.end_span
        ──► Stage.due: summaries of units ──► Budgets: how many spans each may have
    grants ──► Stage.decide: tables for a mapper ──► DecidedUnits (sender.py)

Nothing more can come to a unit below a span of the program's when that span had ended before the
last drain began, and no outermost range that was announced below it is open; to one below a root of
ours when its trace is complete. The end of some spans can't be seen: of a remote one, or one of the
process that this one was forked from. A unit below such a span is decided when a batch has none of
its ranges, or at 2,000 rows. A flush decides the other units in part, and they continue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.outcomes import Outcome, outcome_of
from otel_recfn.batches.sampled_functions import SampledRun, has_no_work
from otel_recfn.batches.stage import MAX_WAITING, Added, Decided, OwnRoot, Stage, find_root
from otel_recfn.model.batch import Batch, Sample
from otel_recfn.model.events import MIN_WAIT_NS, WAIT_TIME, wait_time_ns
from otel_recfn.model.generation import Generation
from otel_recfn.sinks.spans.budgets import Budgets, Grant, UnitEnd, Volume
from otel_recfn.sinks.spans.process_context import ProgramSpans
from otel_recfn.sinks.spans.request_batches import RequestBatches
from otel_recfn.sinks.spans.sender import ROOT_BYTES, DecidedUnits, roots_alone
from otel_recfn.sinks.spans.span_hook import FAILED_COUNT
from otel_recfn.sinks.spans.step_traces import TRAINING, StepTrace, StepTraces
from otel_recfn.sinks.spans.sum_attributes import (
    outside_attributes,
    sum_attributes,
    wait_attributes,
)
from otel_recfn.sinks.spans.unit_attributes import add_to_unit, decoding_in
from otel_recfn.sinks.spans.unit_samples import (
    FunctionTimes,
    SampledSpan,
    SampledTime,
    UnitSamples,
    spans_in,
)
from otel_recfn.support.span_log import is_ours

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


class UnitPart(NamedTuple):
    """A unit that is decided, or a part of it."""

    unit: UnitSummary
    functions: FunctionTimes
    """The samples in it."""
    waits_ns: Mapping[str, int]
    """The time for which its threads waited, by what they waited for, if it waited for most of its
    time.
    """
    sampled: Sequence[tuple[str, SampledRun]]
    """The functions that get a span, each with the run of samples that this shows."""

    @property
    def has_attributes(self) -> bool:
        """Whether a span may have attributes of the whole unit that aren't sums of ranges."""
        has_waited = self.unit.top_ns >= MIN_WAIT_NS
        is_sampled = bool(self.functions or self.waits_ns)
        return has_waited or self.unit.failed_rows > 0 or is_sampled


@dataclass(eq=False, slots=True)
class UnitObjects:
    """The Python objects of an open unit, of which the stage has everything else."""

    parent_span: SpanContext
    name: str = ""
    """The name of the program's span, once that has ended."""
    trace: StepTrace | None = None
    """The complete trace, if it is one of ours."""
    generation: Generation | None = None
    samples: UnitSamples | None = None
    """The samples of what it ran in Python; None if there are none."""

    @property
    def key(self) -> tuple[int, int]:
        """The trace id and span id of the span above."""
        return self.parent_span.trace_id, self.parent_span.span_id

    def part(self, unit: UnitSummary, max_sampled: int, *, is_partial: bool) -> UnitPart:
        """The unit that is decided, or a part of it, with the samples, which it takes, and so many
        spans of them at most.
        """
        end_ns = unit.end_ns
        trains = self.trace is not None and self.trace.name == TRAINING
        found = SampledTime({}, {})
        if self.samples is not None and is_partial:
            found = self.samples.take_part()
        elif self.samples is not None:
            end_ns = self.trace.end_ns if self.trace is not None else end_ns
            found = self.samples.take_all(None if trains else end_ns)
        has_waited = 2 * sum(found.waits_ns.values()) > end_ns - unit.start_ns
        waits_ns = found.waits_ns if has_waited else {}
        spans = spans_in(found.functions, unit.start_ns, end_ns, may_end_later=trains)
        return UnitPart(unit, found.functions, waits_ns, spans[: max(0, max_sampled)])

    def add_attributes(
        self, decided: Decided, index: int, part: UnitPart, *, in_step: bool
    ) -> None:
        """Add the attributes of the whole unit to the root of a trace of ours, or else to a span.

        Args:
            decided: the units that were decided together.
            index: the index of this one among them.
            part: what is decided of it.
            in_step: the span above is a step's, which has the attributes of generations itself.
        """
        unit = part.unit
        waited_ns = wait_time_ns(unit.top_ns, unit.top_cpu_ns)
        generation = self.generation
        attributes: dict[str, Any] = {WAIT_TIME: waited_ns} if waited_ns else {}
        if unit.failed_rows:
            attributes[FAILED_COUNT] = unit.failed_rows
        attributes |= outside_attributes(part.functions) | wait_attributes(part.waits_ns)
        generated: Mapping[str, Any] = {}
        prefill_ids: Sequence[int] = ()
        if generation is not None:
            prefill_ids = generation.prefill_ids
            if not in_step:
                generated = generation.attributes(unit.start_ns)
            self.generation = generation.following_part()
        if self.trace is not None:
            self.trace.extra_attributes = {**attributes, **generated}
            attributes, generated = {}, {}
        add_to_unit(decided, index, attributes, generated, prefill_ids)


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
        self._traces = traces
        self._batches = batches
        self._stage = Stage(
            limit,
            max(MAX_WAITING, 4 * limit),
            torch_names=volume.torch_names,
            max_units=MAX_UNITS,
            max_rows=MAX_ROWS,
            many_rows=MAX_ROWS_UNSEEN,
        )
        self._objects: dict[int, UnitObjects] = {}
        """The objects of the stage's open units, by the units' numbers."""
        self._early_samples: dict[int, UnitSamples] = {}
        """The samples of traces of ours in which no range has ended, so that they have no unit, by
        the span ids of their roots.
        """

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
        for unit, parent_span in added.new_units.items():
            samples = self._early_samples.pop(parent_span.span_id, None)
            self._objects[unit] = UnitObjects(parent_span, samples=samples)
        if (batch.step_number >= 0).any():
            self._note_generations(batch, roots)
        for sample in batch.samples:
            self._add_sample(sample, roots)
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
        without_unit = [trace for trace in finished if not self._finish(trace)]
        for unit in self._mark_ended():
            self._stage.finish(unit)
        due = self._stage.due(drained_ns, time.time_ns())
        decided = self._decide(self._stage.units() if ends else due, is_partial=False)
        if flushes:
            decided += self._decide(self._stage.units(min_rows=1), is_partial=True, is_cut=True)
        return decided + ([roots_alone(without_unit)] if without_unit else [])

    def _note_generations(self, batch: Batch, roots: Sequence[OwnRoot]) -> None:
        for parent_span, number, end_ns, start in decoding_in(batch, roots):
            unit = self._stage.find(parent_span)
            if unit is not None:
                objects = self._objects[unit]
                objects.generation = objects.generation or Generation()
                objects.generation.add(number, end_ns, start)

    def _add_sample(self, sample: Sample, roots: Sequence[OwnRoot]) -> None:
        """Add a sample to its unit, if there is one, and the span above it hadn't ended."""
        if has_no_work(sample.name):
            return
        samples = self._samples_of(sample, roots)
        if samples is not None:
            samples.add(sample)

    def _samples_of(self, sample: Sample, roots: Sequence[OwnRoot]) -> UnitSamples | None:
        """The samples to which one belongs; None if it is in no unit."""
        outcome = outcome_of(sample.context)
        root = find_root(roots, sample.last_begun) if outcome == Outcome.ROOTLESS else None
        if root is None and outcome != Outcome.IN_SPAN:
            return None
        unit = self._stage.find(root.context if root is not None else sample.context)
        if unit is not None:
            return self._samples_until_end(self._objects[unit], sample.time_ns)
        if root is None or not self._traces.has_open(root.context):
            return None
        return self._early_samples.setdefault(root.context.span_id, UnitSamples())

    def _samples_until_end(self, unit: UnitObjects, time_ns: int) -> UnitSamples | None:
        """The samples of a unit; None if the span above it had ended by then."""
        end = self._spans.span_end(*unit.key)
        if end is not None and end.end_ns is not None and end.end_ns < time_ns:
            return None
        unit.samples = unit.samples or UnitSamples()
        return unit.samples

    def _finish(self, trace: StepTrace) -> bool:
        """Note that a trace of ours is complete, and so its unit; False if it has none."""
        unit = self._stage.find(trace.context)
        if unit is None:
            self._early_samples.pop(trace.context.span_id, None)
            return False
        self._objects[unit].trace = trace
        self._stage.finish(unit, takes_sums=True)
        return True

    def _mark_ended(self) -> list[int]:
        """Report to the stage which spans have ended.

        Returns the quiet units below spans that are not known to be open here, as their ends can't
        be seen.
        """
        unseen = []
        for unit in self._stage.unended():
            objects = self._objects[unit.unit]
            end = self._spans.span_end(*objects.key)
            if end is not None:
                now_ns = time.time_ns()
                self._stage.end_span(
                    unit.unit,
                    ended_by_ns=now_ns if end.end_ns is None else min(now_ns, end.end_ns),
                    start_ns=end.start_ns,
                    end_ns=end.end_ns,
                    failed=end.failed,
                )
                objects.name = end.name
            elif unit.is_quiet and not self._is_open(objects):
                unseen.append(unit.unit)
        return unseen

    def _is_open(self, unit: UnitObjects) -> bool:
        """Whether the span above a unit is an open one of the program's, or the root of an open
        trace of ours.
        """
        return self._spans.find(*unit.key) is not None or self._traces.has_open(unit.parent_span)

    def _decide_parts(self, min_rows: int = 0) -> list[DecidedUnits]:
        """Decide the units in part that have so many rows."""
        self._mark_ended()
        return self._decide(self._stage.units(min_rows=min_rows), is_partial=True)

    def _decide(
        self, units: Sequence[UnitSummary], *, is_partial: bool, is_cut: bool = False
    ) -> list[DecidedUnits]:
        """Decide units in the order in which they ended. Ordinary units and others are decided
        separately, because a full queue drops the ordinary ones first.

        ``is_cut``: a flush decides them in part.
        """
        in_order = sorted(units, key=attrgetter("last_ns"))
        granted = [
            (unit, self._budgets.grant(self._unit_end(unit, is_partial, is_cut)))
            for unit in in_order
        ]
        decided = [
            self._decided(list(part), is_partial)
            for _, part in groupby(granted, lambda one: one[1].is_ordinary)
        ]
        for unit in units if not is_partial else ():
            self._spans.forget(*self._objects.pop(unit.unit).key)
        return decided

    def _unit_end(self, unit: UnitSummary, is_partial: bool, is_cut: bool) -> UnitEnd:
        """The state of a unit at its decision."""
        objects = self._objects[unit.unit]
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

    def _decided(
        self, granted: Sequence[tuple[UnitSummary, Grant]], is_partial: bool
    ) -> DecidedUnits:
        """Decide units that are all ordinary or all not, each with its grant."""
        objects = [self._objects[unit.unit] for unit, _ in granted]
        parts = [
            own.part(unit, grant.spans - 1, is_partial=is_partial)
            for own, (unit, grant) in zip(objects, granted, strict=True)
        ]
        ranges = sum(unit.rows for unit, _ in granted)
        is_ordinary = granted[0][1].is_ordinary
        sums = [self._batches.sums_of(one.key) for one in objects]
        decided = self._stage.decide(
            [
                (unit.unit, grant.spans - len(part.sampled))
                for part, (unit, grant) in zip(parts, granted, strict=True)
            ],
            [one.parent_span for one in objects],
            is_partial=is_partial,
            named=[
                part.unit.unit for part, own in zip(parts, sums, strict=True) if own is not None
            ],
            sampled=[(part.unit.unit, run) for part in parts for _, run in part.sampled],
        )
        for index, part in enumerate(parts):
            own = objects[index]
            unit_sums = sums[index]
            if unit_sums is not None:
                unit_sums.add(decided, index, part.unit, part.functions)
                unit_sums.is_ordinary &= is_ordinary
            if part.has_attributes or own.generation is not None:
                in_step = is_ours(self._spans.find(*own.key))
                own.add_attributes(decided, index, part, in_step=in_step)
        sampled = [
            span
            for part, own in zip(parts, objects, strict=True)
            for span in _sampled_spans(decided, part, own.parent_span)
        ]
        roots = [one.trace for one in objects if one.trace is not None]
        is_root_sum = (decided.sums["span"] < 0) & (decided.sums["ranges"] > 0)
        for sum_index in np.flatnonzero(is_root_sum) if roots else ():
            trace = objects[decided.sums["unit"][sum_index]].trace
            assert trace is not None
            trace.extra_attributes = {
                **trace.extra_attributes,
                **sum_attributes(decided, np.array([sum_index]))[0],
            }
            trace.folded += int(
                decided.sums["ranges"][sum_index] * decided.sums["is_whole_unit"][sum_index]
            )
        tables = (decided.sums, decided.top, decided.summaries, decided.callers)
        nbytes = (
            decided.plan.nbytes(
                [*decided.plan.batch.names, *decided.names.values()],
                [table for table in tables if len(table)],
            )
            + (len(roots) + len(sampled)) * ROOT_BYTES
        )
        return DecidedUnits(
            decided.plan, decided, roots, ranges, is_ordinary, nbytes=nbytes, sampled=sampled
        )


def _sampled_spans(
    decided: Decided, part: UnitPart, unit_parent: SpanContext
) -> Iterator[SampledSpan]:
    """The spans for functions of a unit: below the range around each, or directly in the unit.

    One in a range that has no span of its own gets none.
    """
    for name, run in part.sampled:
        parent_id = unit_parent.span_id
        if run.enclosing:
            rows = np.flatnonzero(decided.plan.batch.event_id == run.enclosing)
            if not len(rows):
                continue
            parent_id = int(decided.plan.part(rows).span_id[0])
        yield SampledSpan(name, part.functions[name], run, unit_parent, parent_id)
