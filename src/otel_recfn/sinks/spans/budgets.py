"""How many spans of ours a unit may have: a unit is one span of the program's, or one root of ours, with the ranges below it.

    the first units of a name, and a part of one that goes on   up to span_budget, a fifth of what is free
    one that failed, or took twice as long as is usual          up to span_budget, a quarter of what is left
    ordinary ones, and a worker process's                       up to ordinary_span_budget, a 25th of what is free

What is *left* of a trace's budget is what its units haven't used; half of the whole budget is held back for those that fail or
take long, the rest of what is left is *free*. The same holds for what the program may have in a time (``span_rate.py``); the
smaller share counts. Every unit may have one span, whatever is left, and in its trace that is not counted.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from otel_recfn.sinks.spans.span_rate import SpanRate

FIRST_UNITS = 3
"""So many units of a name come before one can say what is usual."""
DURATIONS = 63
"""Of so many units the median is what is usual."""
MAX_NAMES = 4096
MAX_TRACES = 4096


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
    name: str
    duration_ns: int | None
    """None: it goes on."""
    failed: bool
    end_ns: int
    """When it ended, or that part of it."""
    ranges: int
    """How many it has, or that part of it."""
    aside: bool = False
    """It is ordinary unless it failed, whatever came before."""


@dataclass(slots=True)
class _Usual:
    """The durations of the last units of a name."""

    in_order: deque[int] = field(default_factory=deque)
    sorted: list[int] = field(default_factory=list)
    seen: int = 0

    def add(self, duration_ns: int) -> None:
        self.seen += 1
        self.in_order.append(duration_ns)
        insort(self.sorted, duration_ns)
        if len(self.in_order) > DURATIONS:
            self.sorted.remove(self.in_order.popleft())

    def exceeded_by(self, duration_ns: int) -> bool:
        return duration_ns > 2 * self.sorted[len(self.sorted) // 2]


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
        self._usual: dict[str, _Usual] = {}
        self._used: dict[int, int] = {}

    def grant(self, end: UnitEnd) -> int:
        """How many spans this unit may have; they count as used."""
        unusual = end.failed
        detailed = unusual
        if not end.aside:
            unusual, detailed = self._compared(end)
        wanted = self._most if detailed else self._ordinary
        shares = [_share(left, whole, unusual, detailed) for left, whole in self._left(end)]
        granted = max(1, min([wanted, *shares]))
        self._use(end.trace_id, min(granted, end.ranges))
        return granted

    def _use(self, trace_id: int, spans: int) -> None:
        if self._rate is not None:
            self._rate.use(spans)
        self._used[trace_id] = self._used.pop(trace_id, 0) + max(0, spans - 1)
        for oldest in list(islice(self._used, max(0, len(self._used) - MAX_TRACES))):
            del self._used[oldest]

    def _compared(self, end: UnitEnd) -> tuple[bool, bool]:
        """Whether it is unusual among units of its name, and whether it is worth details."""
        usual = self._usual.get(end.name) or _Usual()
        if end.duration_ns is None:
            return end.failed, True
        unusual = end.failed or (usual.seen >= FIRST_UNITS and usual.exceeded_by(end.duration_ns))
        usual.add(end.duration_ns)
        self._remember(end.name, usual)
        return unusual, unusual or usual.seen <= FIRST_UNITS

    def _left(self, end: UnitEnd) -> list[tuple[int, int]]:
        """What is left, and of how many, in the unit's trace and at its time."""
        left = []
        if self._of_trace is not None:
            left.append((self._of_trace - self._used.get(end.trace_id, 0), self._of_trace))
        if self._rate is not None:
            left.append((self._rate.left(end.end_ns), self._rate.most))
        return left

    def _remember(self, name: str, usual: _Usual) -> None:
        self._usual.pop(name, None)
        self._usual[name] = usual
        for oldest in list(islice(self._usual, max(0, len(self._usual) - MAX_NAMES))):
            del self._usual[oldest]


def _share(left: int, whole: int, unusual: bool, detailed: bool) -> int:
    free = left - whole // 2
    return left // 4 if unusual else free // 5 if detailed else free // 25
