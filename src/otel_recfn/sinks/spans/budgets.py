"""How many spans of ours a unit may have: a unit is one span of the program's, or one root of ours, with the ranges below it.

    the first units of a name, and a part of one that goes on   up to span_budget, a fifth of what is free
    one that failed, or took unusually long                     up to span_budget, a quarter of what is left
    ordinary ones                                               up to ordinary_span_budget, a 25th of what is free
    a worker process's, whatever came before                    a fifth of what ordinary ones have

What is *left* of a trace's budget is what its units haven't used; half of the whole budget is held back for those that fail or
take long, the rest of what is left is *free*. The same holds for what the program may have in a time (``span_rate.py``); the
smaller share counts. Every unit may have one span, whatever is left, and that is not counted.

Ranges that come below a span when its unit has been decided, as those of a background task after the response, have what that
unit left of what it might have had.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import NamedTuple, TypeVar

from otel_recfn.sinks.spans.span_rate import SpanRate
from otel_recfn.sinks.spans.usual_durations import UsualDurations

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

FIRST_UNITS = 3
"""So many units of a name come before one can say what is usual."""
ASIDE = 5
"""A worker process's unit has one in so many of the spans of an ordinary one."""
MAX_TRACES = 4096
MAX_UNITS = 4096


class Volume(NamedTuple):
    """How many spans become of how many ranges."""

    of_unit: int | None
    """None: every range is a span, and the rest of these says nothing."""
    of_ordinary_unit: int | None = None
    """None: as of others."""
    of_trace: int | None = None
    """None: any number."""
    min_duration_ns: int = 0
    """Shorter ranges are folded."""
    per_second: float | None = None
    """Of all units in a time. None: any number."""


EVERY_RANGE = Volume(None)


class UnitEnd(NamedTuple):
    """What is known of a unit when it is decided."""

    trace_id: int
    span_id: int
    name: str
    duration_ns: int | None
    """None: it goes on."""
    failed: bool
    end_ns: int
    """When it ended, or that part of it."""
    ranges: int
    """How many it has, or that part of it."""
    aside: bool = False
    """It is work beside the program's own, and of no interest unless it failed."""


class _Claim(NamedTuple):
    """What a unit may have, where there is enough."""

    spans: int
    unusual: bool
    detailed: bool


class Budgets:
    """Grants spans to units.

    Args:
        most: spans of a unit.
        volume: of the others.
    """

    def __init__(self, most: int, volume: Volume) -> None:
        self._most, self._of_trace = most, volume.of_trace
        self._ordinary = most if volume.of_ordinary_unit is None else min(volume.of_ordinary_unit, most)
        self._rate = SpanRate(volume.per_second) if volume.per_second is not None else None
        self._usual = UsualDurations()
        self._used: dict[int, int] = {}
        self._left_of: dict[tuple[int, int], _Claim] = {}
        """What units left that were decided, for ranges that come later."""

    def grant(self, end: UnitEnd) -> int:
        """How many spans this unit may have; they count as used."""
        unit = (end.trace_id, end.span_id)
        claim = self._left_of.get(unit)
        if claim is None or end.failed:
            claim = self._claim(end)
        granted = max(1, min([claim.spans, *[_share(left, whole, claim) for left, whole in self._left(end)]]))
        used = min(granted, end.ranges)
        self._use(end.trace_id, used)
        if end.duration_ns is not None:
            _remember(self._left_of, unit, claim._replace(spans=max(0, claim.spans - used)), MAX_UNITS)
        return granted

    def _claim(self, end: UnitEnd) -> _Claim:
        if end.failed:
            return _Claim(self._most, True, True)
        if end.aside:
            return _Claim(self._ordinary // ASIDE, False, False)
        if end.duration_ns is None:
            return _Claim(self._most, False, True)
        seen, exceeded = self._usual.compare(end.name, end.duration_ns)
        unusual = seen >= FIRST_UNITS and exceeded
        detailed = unusual or seen < FIRST_UNITS
        return _Claim(self._most if detailed else self._ordinary, unusual, detailed)

    def _use(self, trace_id: int, spans: int) -> None:
        counted = max(0, spans - 1)
        if self._rate is not None:
            self._rate.use(counted)
        _remember(self._used, trace_id, self._used.get(trace_id, 0) + counted, MAX_TRACES)

    def _left(self, end: UnitEnd) -> list[tuple[int, int]]:
        """What is left, and of how many, in the unit's trace and at its time."""
        left = []
        if self._of_trace is not None:
            left.append((self._of_trace - self._used.get(end.trace_id, 0), self._of_trace))
        if self._rate is not None:
            left.append((self._rate.left(end.end_ns), self._rate.most))
        return left


def _share(left: int, whole: int, claim: _Claim) -> int:
    free = left - whole // 2
    return left // 4 if claim.unusual else free // 5 if claim.detailed else free // 25


def _remember(values: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """As the newest of so many."""
    values.pop(key, None)
    values[key] = value
    if len(values) > most:
        for oldest in list(islice(values, len(values) - most)):
            del values[oldest]
