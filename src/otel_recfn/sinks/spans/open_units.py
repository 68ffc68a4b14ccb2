"""The units that ranges came to and that aren't decided: one for each span above outermost ranges.

A unit is decided when nothing more can come: the program's span has ended before the last drain began, and no outermost range
that was announced below it is open; a root of ours when its trace is complete. Below a span whose end can't be seen (a remote
one, or one of the process that this one was forked from) a unit is decided when a batch had nothing of it, or at 2,000 rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.owed import still_owed
from otel_recfn.batches.rows import SpanSums, outermost_begun, outermost_ended, sums_above
from otel_recfn.batches.span_plan import Fate, SpanPlan, fate_of
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.sinks.spans.budgets import UnitEnd
from otel_recfn.sinks.spans.program_spans import ProgramSpans, SpanEnd
from otel_recfn.sinks.spans.trace_boundaries import StepTrace

NEVER = np.iinfo(np.int64).max
MOST_ROWS_UNSEEN = 2000
"""Of a unit below a span whose end can't be seen."""
_NO_IDS: NDArray[np.uint64] = np.zeros(0, np.uint64)


@dataclass(eq=False, slots=True)
class OpenUnit:
    """A unit that isn't decided."""

    number: int
    above: SpanContext
    key: tuple[int, int]
    """Trace id and span id of the span above."""
    first_ns: int = NEVER
    last_ns: int = 0
    failed: bool = False
    """A range of it was left by an exception."""
    rows: int = 0
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
        span_of: the span that a context stands for.
    """

    def __init__(self, spans: ProgramSpans, span_of: Callable[[SpanContextRef], SpanContext]) -> None:
        self._spans, self._span_of = spans, span_of
        self._units: dict[tuple[int, int], OpenUnit] = {}
        self._count = self._batches = 0
        self._open = _NO_IDS
        """Announced outermost ranges that haven't ended."""

    def __len__(self) -> int:
        return len(self._units)

    def begin_batch(self, batch: Batch) -> None:
        """A batch comes: note which outermost ranges began below spans of the program."""
        self._batches += 1
        if not len(batch.opened) and not len(self._open):
            return
        begun = outermost_begun(batch)
        self._open = still_owed(self._open, begun.event_id, outermost_ended(batch))
        counts = begun.of_context
        for index in np.flatnonzero(counts).tolist():
            context = batch.contexts[index]
            if fate_of(context) == Fate.IN_SPAN:
                known = self._units.get((context.trace_id, context.span_id))
                unit = known if known is not None else self._unit(self._span_of(context))
                unit.open += int(counts[index])

    def rest(self) -> None:
        """No batch came for a while."""
        self._batches += 1

    def sums(self, plan: SpanPlan) -> SpanSums:
        """What the rows of a plan tell together."""
        return sums_above(plan.batch, plan.row, plan.above, len(plan.spans_above))

    def numbers(self, plan: SpanPlan, sums: SpanSums) -> NDArray[np.uint32]:
        """The number of each unit that rows of a plan are of, by the index of the span above."""
        numbers = np.zeros(len(plan.spans_above), np.uint32)
        for index in np.flatnonzero(sums.rows).tolist():
            unit = self._unit(plan.spans_above[index])
            unit.touched = self._batches
            numbers[index] = unit.number
        return numbers

    def note(self, plan: SpanPlan, sums: SpanSums) -> None:
        """What the rows of a plan, which are added, tell of their units."""
        columns = [column.tolist() for column in (sums.rows, sums.first_ns, sums.last_ns, sums.outermost, sums.failed)]
        for above, rows, first_ns, last_ns, outermost, failed in zip(plan.spans_above, *columns, strict=True):
            if not rows:
                continue
            unit = self._unit(above)
            unit.first_ns, unit.last_ns = min(unit.first_ns, first_ns), max(unit.last_ns, last_ns)
            unit.open, unit.rows = max(0, unit.open - outermost), unit.rows + rows
            unit.failed = unit.failed or failed > 0

    def of(self, number: int) -> OpenUnit:
        """The unit with that number."""
        return next(iter([unit for unit in self._units.values() if unit.number == number]))

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
        return [unit for unit in self._units.values() if not unit.open and self._has_ended(unit, drained_ns, roots)]

    def is_open(self, roots: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these outermost ranges will certainly come."""
        return is_in(roots, self._open)

    def oldest(self, most: int) -> list[OpenUnit]:
        """Those that rows came to longest ago, if there are more than ``most``."""
        surplus = len(self._units) - most
        return sorted(self._units.values(), key=_last_touched)[:surplus] if surplus > 0 else []

    def all(self) -> list[OpenUnit]:
        """Every unit."""
        return list(self._units.values())

    def forget(self, units: Iterable[OpenUnit]) -> None:
        """They are decided."""
        for unit in units:
            key = unit.key
            self._units.pop(key, None)
            self._spans.forget(*key)

    def end_of(self, unit: OpenUnit, ranges: int, trace: StepTrace | None, goes_on: bool) -> UnitEnd:
        """What is known of a unit at its end."""
        of_span = unit.key
        if trace is not None:
            duration = None if goes_on else trace.end_ns - trace.start_ns
            return UnitEnd(*of_span, trace.name, duration, unit.failed, unit.last_ns, ranges, trace.aside)
        span = unit.end or self._end(unit)
        if span is None:
            duration = None if goes_on else max(0, unit.last_ns - unit.first_ns)
            return UnitEnd(*of_span, "", duration, unit.failed, unit.last_ns, ranges)
        start_ns, end_ns = self.extent_of(unit)
        ended_ns = max(unit.last_ns, min(end_ns, unit.ended_ns))
        return UnitEnd(*of_span, span.name, end_ns - start_ns, unit.failed or span.failed, ended_ns, ranges)

    def extent_of(self, unit: OpenUnit) -> tuple[int, int]:
        """From when to when the unit goes, in Unix nanoseconds."""
        span = unit.end or self._end(unit)
        start_ns = span.start_ns if span is not None else None
        end_ns = span.end_ns if span is not None else None
        return unit.first_ns if start_ns is None else start_ns, unit.last_ns if end_ns is None else end_ns

    def _has_ended(self, unit: OpenUnit, drained_ns: int, roots: Collection[int]) -> bool:
        span = unit.end or self._end(unit)
        if span is None:
            if self._spans.find(*unit.key) is not None:
                return False
            is_over = unit.touched < self._batches or unit.rows >= MOST_ROWS_UNSEEN
            return is_over and unit.above.span_id not in roots
        unit.ended_ns = min(unit.ended_ns, time.time_ns(), NEVER if span.end_ns is None else span.end_ns)
        return unit.ended_ns < drained_ns

    def _end(self, unit: OpenUnit) -> SpanEnd | None:
        if unit.end is None:
            unit.end = self._spans.end_of(*unit.key)
        return unit.end

    def _unit(self, above: SpanContext) -> OpenUnit:
        key = (above.trace_id, above.span_id)
        unit = self._units.get(key)
        if unit is None:
            self._count += 1
            unit = self._units[key] = OpenUnit(self._count, above, key, touched=self._batches)
        return unit


def _last_touched(unit: OpenUnit) -> int:
    return unit.touched


def numbers_of(units: Sequence[OpenUnit]) -> list[int]:
    """Their numbers."""
    return [unit.number for unit in units]
