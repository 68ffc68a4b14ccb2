"""The way from batches to decided units: every range comes to its unit, and a unit is sent when nothing more can come to it.

batch ──► Stage.add: planned, linked, folded ──► OpenUnit: what is known of each
units that have ended ──► Budgets: how many spans each may have ──► Stage.decide ──► DecidedUnits (sender.py)

A unit is decided when nothing more can come: the program's span has ended before the last drain began, and no outermost range
that was announced below it is open; a root of ours when its trace is complete. Below a span whose end can't be seen (a remote
one, or one of the process that this one was forked from) a unit is decided when a batch had nothing of it, or at 2,000 rows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any

import numpy as np
from opentelemetry.trace import Link, SpanContext

from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.stage import (
    MOST_WAITING,
    Added,
    Decided,
    Fate,
    Ids,
    SpanPlan,
    Stage,
    UnitInBatch,
    UnitToDecide,
    fate_of,
    span_context,
)
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import LEAST_WAIT_NS, WAIT_TIME, EventFlag, RowKind, wait_time_ns
from otel_recfn.model.generation import Generation
from otel_recfn.sinks.spans.budgets import Budgets, Grant, UnitEnd, Volume
from otel_recfn.sinks.spans.mapping import SpanMapper, sums_of
from otel_recfn.sinks.spans.provider import SpanTarget
from otel_recfn.sinks.spans.sender import ROOT_BYTES, DecidedUnits
from otel_recfn.sinks.spans.span_hook import FOLDED_COUNT, FOLDED_NS, SpanHook
from otel_recfn.sinks.spans.step_traces import StepTrace, StepTraces
from otel_recfn.sinks.spans.surroundings import ProgramSpans, SpanEnd, remember
from otel_recfn.sinks.spans.unit_attributes import add_to_unit, decoding_in

NEVER = (1 << 63) - 1
MOST_ROWS_UNSEEN = 2000
"""The rows of a unit below a span whose end can't be seen, before it is decided."""
MAX_UNITS = 4096
MAX_KEPT = 1 << 18
"""The most ranges that are held for all units, some 500 bytes each; beyond, units that had no rows for longest are decided."""
MAX_ROWS_OF_A_UNIT = 100_000
"""The rows after which a unit that stays open is decided in part."""
ROWS_AT_ONCE = 1 << 15
"""The rows that wait as one unit if each range is a span."""
OPEN_FOR_LONG = "open for long"
MOST_OPEN = 1000
"""The most spans of a trace of open ranges."""


@dataclass(eq=False, slots=True)
class OpenUnit:
    """A unit that isn't decided."""

    above: SpanContext
    key: tuple[int, int]
    """The trace id and span id of the span above."""
    touched: int
    """The number of the last batch that had rows of it."""
    first_ns: int = NEVER
    last_ns: int = 0
    failed: bool = False
    """Whether an exception left a range of it."""
    rows: int = 0
    """The number of rows since its last part. The next two are of these rows, as of ``UnitInBatch``."""
    top_ns: int = 0
    top_cpu_ns: int = 0
    open: int = 0
    """The number of announced outermost ranges that haven't ended."""
    ended_ns: int = NEVER
    """The time by which the program's span had certainly ended: a program may give it an end that is still to come."""
    end: SpanEnd | None = None
    """The end of the program's span, once it was seen."""
    trace: StepTrace | None = None
    """The complete trace, if it is one of ours."""
    generation: Generation | None = None

    def add_attributes(self, decided: Decided, number: int, goes_on: bool) -> None:
        """Add the attributes of the unit, which was decided at that place: to the root of a trace of ours, or to a span."""
        waited_ns, generation = wait_time_ns(self.top_ns, self.top_cpu_ns), self.generation
        found: dict[str, Any] = {WAIT_TIME: waited_ns} if waited_ns else {}
        if generation is not None and not goes_on:  # all of it is known
            found |= generation.attributes(self.extent()[0])
        if self.trace is not None:
            self.trace.further, found = found, {}
        add_to_unit(
            decided, number, found, generation.prefill_ids if generation is not None else []
        )

    def extent(self) -> tuple[int, int]:
        """The begin and the end of the unit, in Unix nanoseconds."""
        start_ns, end_ns = (
            (self.end.start_ns, self.end.end_ns) if self.end is not None else (None, None)
        )
        return (
            self.first_ns if start_ns is None else start_ns,
            self.last_ns if end_ns is None else end_ns,
        )


class Folding:
    """The folding of one sink. ``most`` limits the spans of a unit, ``spans`` are the program's, ``traces`` our own."""

    def __init__(self, most: int, volume: Volume, spans: ProgramSpans, traces: StepTraces) -> None:
        self._budgets, self._spans, self._traces = Budgets(most, volume), spans, traces
        self._most_held = most + max(MOST_WAITING, 4 * most)
        self._stage = Stage(most, self._most_held - most, torch_names=volume.torch_names)
        self._units: dict[tuple[int, int], OpenUnit] = {}
        self._batches = self._drained_ns = 0

    def add(
        self, batch: Batch, roots: Mapping[int, SpanContext]
    ) -> tuple[Added, list[DecidedUnits]]:
        """Add a batch's ranges to their units. Units that are full are decided in part, and go on.

        ``roots``: the root span of ours above outermost ranges without a span around them, if that trace is recorded.
        """
        self._drained_ns = max(self._drained_ns, batch.drained_ns)
        added = self._stage.add(batch, roots)
        self._batches += 1
        touched = [self._note(share) for share in added.units]
        if (batch.step_number >= 0).any():
            self._note_generations(batch, roots)
        if self._stage.has_many_names:
            decided = self._decide(list(self._units.values()), goes_on=True)
            self._stage.forget_names()
            return added, decided
        return added, self._decide(
            [unit for unit in touched if unit.rows >= MAX_ROWS_OF_A_UNIT], goes_on=True
        )

    def due(
        self,
        finished: Sequence[StepTrace],
        drained_ns: int = 0,
        *,
        rests: bool = False,
        ends: bool = False,
    ) -> list[DecidedUnits]:
        """All units to which nothing more can come.

        Args:
            finished: traces of ours that are complete; what was folded directly into one is noted there.
            drained_ns: what had ended by then has come.
            rests: no batch came for a while.
            ends: nothing comes any more, to any unit.
        """
        self._drained_ns = max(self._drained_ns, drained_ns)
        self._batches += rests
        units, alone = dict[OpenUnit, None](), []
        for trace in finished:
            unit = (
                self._units.get((trace.context.trace_id, trace.context.span_id))
                if trace.context is not None
                else None
            )
            if unit is None:
                alone.append(trace)
            else:
                unit.trace, units[unit] = trace, None
        units |= dict.fromkeys(
            [unit for unit in self._units.values() if ends or self._has_ended(unit)]
        )
        if self._stage.waiting.rows > MAX_KEPT or len(self._units) > MAX_UNITS:
            units |= dict.fromkeys(self._excess_units(units))
        return self._decide(list(units), goes_on=False) + ([roots_alone(alone)] if alone else [])

    def _note_generations(self, batch: Batch, roots: Mapping[int, SpanContext]) -> None:
        for key, number, end_ns, attributes in decoding_in(batch, roots):
            if (unit := self._units.get(key)) is not None:
                unit.generation = unit.generation or Generation()
                unit.generation.add(number, end_ns, attributes)

    def _note(self, share: UnitInBatch) -> OpenUnit:
        """Note a unit's share of a batch."""
        key = (share.above.trace_id, share.above.span_id)
        unit = self._units.get(key)
        if unit is None:
            unit = self._units[key] = OpenUnit(share.above, key, self._batches)
        unit.open += share.begun
        if share.rows:
            unit.touched = self._batches
            unit.first_ns, unit.last_ns = (
                min(unit.first_ns, share.first_ns),
                max(unit.last_ns, share.last_ns),
            )
            unit.open, unit.rows = max(0, unit.open - share.outermost), unit.rows + share.rows
            unit.failed = unit.failed or share.failed > 0
            unit.top_ns, unit.top_cpu_ns = (
                unit.top_ns + share.top_ns,
                unit.top_cpu_ns + share.top_cpu_ns,
            )
        return unit

    def _has_ended(self, unit: OpenUnit) -> bool:
        """Whether nothing more can come to it."""
        if unit.open:
            return False
        if unit.end is None:
            unit.end = self._spans.end_of(*unit.key)
        if unit.end is not None:
            unit.ended_ns = min(
                unit.ended_ns, time.time_ns(), NEVER if unit.end.end_ns is None else unit.end.end_ns
            )
            return unit.ended_ns < self._drained_ns
        is_over = unit.touched < self._batches or unit.rows >= MOST_ROWS_UNSEEN
        return (
            is_over
            and self._spans.find(*unit.key) is None
            and not self._traces.has_open(unit.above)
        )

    def _excess_units(self, ended: Collection[OpenUnit]) -> list[OpenUnit]:
        """Units that had no rows for longest, if there are too many units, or too many rows that may be kept."""
        units = sorted(self._units.values(), key=attrgetter("touched"))
        if self._stage.waiting.rows <= MAX_KEPT:
            return units[: len(units) - MAX_UNITS]
        units = [unit for unit in units if unit not in ended]
        kept = [min(unit.rows, self._most_held) for unit in units]
        of_newer = [*accumulate(reversed(kept))][::-1]
        return [unit for unit, rows in zip(units, of_newer, strict=True) if rows > MAX_KEPT]

    def _decide(self, units: Sequence[OpenUnit], *, goes_on: bool) -> list[DecidedUnits]:
        """Decide units in the order in which they ended, ordinary ones apart."""
        ended = sorted(
            [(unit, self._end_of(unit, goes_on)) for unit in units], key=lambda one: one[1].end_ns
        )
        granted = [(unit, self._budgets.grant(end)) for unit, end in ended]
        decided = [
            self._decided(list(part), goes_on)
            for _, part in groupby(granted, lambda one: one[1].is_ordinary)
        ]
        for unit in units:
            unit.rows = unit.top_ns = unit.top_cpu_ns = 0
            if not goes_on:
                del self._units[unit.key]
                self._spans.forget(*unit.key)
        return decided

    def _end_of(self, unit: OpenUnit, goes_on: bool) -> UnitEnd:
        """The state of a unit at its decision."""
        name, failed, last_ns, aside = "", unit.failed, unit.last_ns, False
        start_ns, end_ns = min(unit.first_ns, unit.last_ns), unit.last_ns
        span = unit.end = unit.end or self._spans.end_of(*unit.key)
        if unit.trace is not None:
            name, aside, start_ns, end_ns = (
                unit.trace.name,
                unit.trace.aside,
                unit.trace.start_ns,
                unit.trace.end_ns,
            )
        elif span is not None:
            name, failed, goes_on = span.name, failed or span.failed, False
            start_ns, end_ns = unit.extent()
            last_ns = max(last_ns, min(end_ns, unit.ended_ns))
        return UnitEnd(
            unit.key,
            name,
            None if goes_on else end_ns - start_ns,
            failed,
            last_ns,
            unit.rows,
            aside,
        )

    def _decided(self, part: Sequence[tuple[OpenUnit, Grant]], goes_on: bool) -> DecidedUnits:
        ranges = sum(unit.rows for unit, _ in part)
        traces = [unit.trace for unit, _ in part]
        units = [
            UnitToDecide(unit.above, grant.spans, *unit.extent(), goes_on, unit.trace is not None)
            for unit, grant in part
        ]
        done = self._stage.decide(units, ranges)
        for number, (unit, _) in enumerate(part):
            if unit.top_ns >= LEAST_WAIT_NS or unit.generation is not None:
                unit.add_attributes(done, number, goes_on)
        roots = [trace for trace in traces if trace is not None]
        for place in (
            np.flatnonzero((done.sums["span"] < 0) & (done.sums["ranges"] > 0)) if roots else ()
        ):
            trace, (told,) = traces[done.sums["unit"][place]], sums_of(done, np.array([place]))
            assert trace is not None
            trace.further = {**trace.further, **told}
            trace.folded += int(done.sums["ranges"][place] * done.sums["of_unit"][place])
        beside = [table for table in (done.sums, done.top, done.summaries) if len(table)]
        nbytes = (
            done.plan.nbytes([*done.plan.batch.names, *done.names.values()], beside, done.single)
            + len(roots) * ROOT_BYTES
        )
        return DecidedUnits(done.plan, done, roots, ranges, part[0][1].is_ordinary, nbytes=nbytes)


def roots_alone(traces: Sequence[StepTrace]) -> DecidedUnits:
    """The roots of our traces that are not sent with a unit."""
    return DecidedUnits(roots=traces, nbytes=len(traces) * ROOT_BYTES)


class EveryRange:
    """The stand-in for ``Folding`` where units have no budget."""

    def __init__(self, *, torch_names: bool = False) -> None:
        self._stage = Stage(budget=0, torch_names=torch_names)
        self._names: Sequence[str] = ()
        self._named = 0
        """The number of names in the batches until now, of the list that they share."""
        self._inside: dict[int, tuple[int, int]] = {}
        """The number and time of what ran in compilations, by the event ids of the ranges around that haven't ended."""

    def add(
        self, batch: Batch, roots: Mapping[int, SpanContext]
    ) -> tuple[Added, list[DecidedUnits]]:
        """All of a batch but what ran in compilations, in the order of the rows' ends, so many at a time."""
        plan, added = self._stage.plan(batch, roots)
        plan, sums = self._fold_inside(plan)
        added = added._replace(planned=len(plan.row))
        if len(plan.row) < len(batch):  # so that what waits keeps nothing of the other rows alive
            plan = plan._replace(batch=batch.take(plan.row), row=np.arange(len(plan.row)))
        parts = [
            plan.part(slice(first, first + ROWS_AT_ONCE))
            for first in range(0, added.planned, ROWS_AT_ONCE)
        ]
        nbytes = plan.nbytes(self._new_texts(batch.names))
        sizes = [(one, len(one.row)) for one in parts]
        return added, [
            DecidedUnits(one, sums=sums, ranges=rows, nbytes=nbytes * rows // added.planned)
            for one, rows in sizes
        ]

    def _fold_inside(self, plan: SpanPlan) -> tuple[SpanPlan, dict[int, Mapping[str, int]]]:
        """The plan without what ran in compilations, and the sums of that, by the event ids of the ranges around."""
        batch, rows = plan.batch, plan.row
        is_inside = batch.flags[rows] & EventFlag.IN_COMPILATION != 0
        if not self._inside and not is_inside.any():
            return plan, {}
        sums = dict[int, Mapping[str, int]]()
        columns = (
            is_inside,
            batch.event_id[rows],
            plan.parent,
            batch.end_ns[rows] - batch.start_ns[rows],
        )
        for inside, event_id, parent, duration_ns in zip(
            *[column.tolist() for column in columns], strict=True
        ):
            count, took_ns = self._inside.pop(event_id, (0, 0))
            if inside:
                beside, beside_ns = self._inside.get(parent, (0, 0))
                remember(
                    self._inside,
                    parent,
                    (beside + count + 1, beside_ns + max(0, duration_ns)),
                    MAX_UNITS,
                )
            elif count:
                sums[event_id] = {FOLDED_COUNT: count, FOLDED_NS: took_ns}
        return plan.part(np.flatnonzero(~is_inside)), sums

    def _new_texts(self, names: Sequence[str]) -> Sequence[str]:
        """The names that no batch had before."""
        known = self._named if names is self._names else 0
        self._names, self._named = names, len(names)
        return names[known : self._named]

    def due(
        self,
        finished: Sequence[StepTrace],
        drained_ns: int = 0,
        *,
        rests: bool = False,
        ends: bool = False,
    ) -> list[DecidedUnits]:
        """The roots of traces that are complete: nothing else waits."""
        return [roots_alone(finished)] if finished else []


class OpenTraces:
    """Ranges that are open for long, as traces of their own: one for each outermost range in which something hangs.

        open for long      a root of ours, linked to the span that the ranges lie in
        └─ epoch           a span with ``recfn.partial``
           └─ aten::mm     another one

    They can't be sent in the trace that they belong to: the span around them hasn't ended, and may never come, and they come
    there themselves, under the same ids, when they end.
    The program's hook is asked apart from the spans of ranges that have ended.
    """

    def __init__(self, traces: StepTraces, hook: SpanHook | None, volume: Volume) -> None:
        self._traces, self._hook, self._torch_names = traces, hook, volume.torch_names
        self._most = MOST_OPEN if volume.of_unit is None else volume.of_unit
        self._reported: Ids = np.zeros(0, np.uint64)
        """The event ids of open ranges that have had such a trace."""

    def new(self, batch: Batch, target: SpanTarget) -> list[DecidedUnits]:
        """A trace for each tree of ranges that are open for long, if some of them had none yet.

        ``batch`` has all ranges that are open for long, as partial rows.
        """
        self._reported = self._reported[is_in(self._reported, batch.event_id)]
        fates = np.take(
            np.array([fate_of(context) for context in batch.contexts], np.uint8), batch.context
        )
        unreported = (
            (batch.kind == RowKind.RANGE)
            & (fates >= Fate.IN_SPAN)
            & ~is_in(batch.event_id, self._reported)
        )
        rows = np.flatnonzero(unreported)
        trees: dict[int, list[int]] = {}
        for row in rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))].tolist():
            trees.setdefault(int(batch.root[row]), []).append(row)
        found = [self._trace(batch, root, rows, target) for root, rows in trees.items()]
        return [units for units in found if units is not None]

    def _trace(
        self, batch: Batch, root: int, unreported: list[int], target: SpanTarget
    ) -> DecidedUnits | None:
        """The trace of one tree; None if the sampler refuses, or the limit has none left: then the next call tries again."""
        if not self._traces.limiter.admit(int(batch.end_ns.max())):
            return None
        context, trace = batch.contexts[int(batch.context[unreported[0]])], self._traces.find(root)
        above = (
            span_context(context)
            if fate_of(context) == Fate.IN_SPAN
            else trace.context
            if trace is not None
            else None
        )
        start = target.start_root(
            OPEN_FOR_LONG, {"recfn.root": True}, links=[Link(above)] if above is not None else []
        )
        self._reported = np.concatenate([self._reported, batch.event_id[unreported]])
        if start is None:
            return None
        rows = np.array(self._with_ancestors(batch, unreported), np.int64)
        thread, start_ns = batch.tracks[int(batch.thread[rows[0]])], int(batch.start_ns[rows].min())
        open_trace = StepTrace(
            start, thread, start_ns, int(batch.end_ns[rows].max()), called=OPEN_FOR_LONG
        )
        left_out = len(set(unreported).difference(rows.tolist()))
        open_trace.further = {FOLDED_COUNT: left_out} if left_out else {}
        parent, nothing = batch.parent[rows], np.zeros(len(rows), np.int64)
        inner = np.where(is_in(parent, batch.event_id[rows]), parent, np.uint64(0))
        plan = SpanPlan(
            batch,
            rows,
            inner,
            nothing,
            nothing.astype(np.uint64),
            nothing,
            [start.context],
            self._torch_names,
        )
        mapper = SpanMapper(target, self._hook.beside() if self._hook is not None else None)
        return DecidedUnits(
            plan, roots=[open_trace], mapper=mapper, nbytes=ROOT_BYTES + plan.nbytes(batch.names)
        )

    def _with_ancestors(self, batch: Batch, unreported: list[int]) -> list[int]:
        """The rows and the open ranges around them, parents first, as many as fit."""
        place, parents = (
            dict(zip(batch.event_id.tolist(), range(len(batch)), strict=True)),
            batch.parent.tolist(),
        )
        kept: dict[int, None] = {}
        for row in unreported:
            line: list[int] = []
            at: int | None = row
            while at is not None and at not in kept:
                line.append(at)
                at = place.get(parents[at])
            kept.update(dict.fromkeys(line[::-1][: self._most - len(kept)]))
        return list(kept)
