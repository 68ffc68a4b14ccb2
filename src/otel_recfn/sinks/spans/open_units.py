"""The units that ranges came to and that aren't decided: one for each span above outermost ranges.

A unit is decided when nothing more can come: the program's span has ended before the last drain began, and no outermost range
that was announced below it is open; a root of ours when its trace is complete. Below a span whose end can't be seen (a remote
one, or one of the process that this one was forked from) a unit is decided when a batch had nothing of it, or at 2,000 rows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from opentelemetry.trace import SpanContext

from otel_recfn.batches.stage import UnitInBatch
from otel_recfn.sinks.spans.budgets import UnitEnd
from otel_recfn.sinks.spans.program_spans import ProgramSpans, SpanEnd
from otel_recfn.sinks.spans.trace_boundaries import StepTrace

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
            unit = self._unit(told)
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
        return [unit for unit in self._units.values() if not unit.open and self._has_ended(unit, drained_ns, roots)]

    def oldest(self, most: int) -> list[OpenUnit]:
        """Those that rows came to longest ago, if there are more than ``most``."""
        surplus = len(self._units) - most
        return sorted(self._units.values(), key=_last_touched)[:surplus] if surplus > 0 else []

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

    def _unit(self, told: UnitInBatch) -> OpenUnit:
        key = (told.above.trace_id, told.above.span_id)
        unit = self._units.get(key)
        if unit is None:
            unit = self._units[key] = OpenUnit(told.above, key, touched=self._batches)
        return unit


def _last_touched(unit: OpenUnit) -> int:
    return unit.touched
