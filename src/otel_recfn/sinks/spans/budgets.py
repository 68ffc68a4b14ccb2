"""The budgets of units: a unit is one span of the program's, or one root of ours, with the ranges
below it.

    the first units of a name, and        up to span_budget, a fifth of what is free
    a part of one that continues
    one that failed, or took              up to span_budget, a quarter of what is left
    unusually long
    ordinary ones                         up to ordinary_span_budget, a 25th of what is free
    a worker process's, whatever          a fifth of what ordinary ones have
    came before
    a part that a flush sends             like an ordinary one; these spans are taken from
    while its unit continues              the unit's own

One half of a trace's budget is *free*, the other is held back for units that fail or take long. So
is half of what the program may have in a time (``SpanRate``); the smaller share counts. Every unit
may have one span, whatever is left, and that is not counted.

Ranges that come after their unit's decision, as of a background task after the response, may use
the rest of its grant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from otel_recfn.support.recent_entries import remember

NS_PER_SECOND = 1_000_000_000
DURATIONS = 1023
"""The last units of a name that are remembered: their median is what is usual."""
UNUSUAL = 16
"""One in this many units may be unusual: on a busy machine, where all take longer, most aren't."""
MAX_NAMES = 4096
"""The most names, those of the last units, whose usual durations are known."""
BURST_SECONDS = 10
"""The seconds whose unused spans may be used at once."""
FIRST_UNITS = 3
"""The units of a name that come before one can say what is usual."""
WORKER_PART = 5
"""A worker process's unit gets one in this many of the spans of an ordinary unit."""
MAX_TRACES = 4096
MAX_UNITS = 4096


class Volume(NamedTuple):
    """The settings of how many spans become of how many ranges, and of their names."""

    unit_budget: int | None
    """Spans of a unit. None: every range is a span, and the other fields mean nothing."""
    ordinary_unit_budget: int | None = None
    """Spans of an ordinary unit. None: as for others."""
    trace_budget: int | None = None
    """Spans of a trace. None: any number."""
    per_second: float | None = None
    """Spans of all units in a second. None: any number."""
    torch_names: bool = False
    """Whether spans of module calls have torch.profiler's names."""


EVERY_RANGE = Volume(None)


class UsualDurations:
    """The usual durations of units, by name."""

    def __init__(self) -> None:
        self._durations_by_name: dict[str, tuple[deque[int], list[int]]] = {}
        """The last ones of a name, in the order of their units and in their own."""

    def compare(self, name: str, duration_ns: int) -> tuple[int, bool]:
        """The number of earlier units of the name that are remembered, and whether this one took
        unusually long.

        A unit is slow if it took more than twice the median and is among the longest.
        """
        durations = self._durations_by_name.get(name) or (deque(), [])
        remember(self._durations_by_name, name, durations, MAX_NAMES)
        in_turn, ascending = durations
        rank = bisect_left(ascending, duration_ns)
        count = len(ascending)
        is_unusual = (
            count > 0
            and count - rank <= count // UNUSUAL
            and duration_ns > 2 * max(1, ascending[count // 2])
        )
        in_turn.append(duration_ns)
        ascending.insert(rank, duration_ns)
        if count == DURATIONS:
            del ascending[bisect_left(ascending, in_turn.popleft())]
        return count, is_unusual


class SpanRate:
    """The number of spans in a time, over all traces, so that making and sending them keeps up with
    the program.

    Half of them are for units that fail or take unusually long, half for the others, so that
    neither leave the others none. Unused budget of one half goes to the other. Time is that of the
    units, by when they end, and not when they are decided: so the same program gives the same spans
    however busy the machine is.
    """

    def __init__(self, per_second: float) -> None:
        self._half_per_ns = per_second / NS_PER_SECOND / 2
        self._half = int(BURST_SECONDS * per_second) / 2
        """The spans of one half that may be used at once."""
        self._remaining = [self._half, self._half]
        """The rest of each half, that for unusual units last."""
        self._at_ns = 0

    def remaining(self, now_ns: int, *, unusual: bool) -> int:
        """The spans that such units may have now. Never below 0, even if more were used."""
        if now_ns > self._at_ns:
            more = (now_ns - self._at_ns) * self._half_per_ns
            self._at_ns = now_ns
            ordinary, unusual_ones = [spans + more for spans in self._remaining]
            self._remaining = [
                min(self._half, ordinary + max(0.0, unusual_ones - self._half)),
                min(self._half, unusual_ones + max(0.0, ordinary - self._half)),
            ]
        elif self._at_ns - now_ns > BURST_SECONDS * NS_PER_SECOND:  # somebody set the clock back
            self._at_ns = now_ns
        return int(self._remaining[unusual])

    def use(self, spans: int, *, unusual: bool) -> None:
        """Count so many spans as used."""
        self._remaining[unusual] = max(0.0, self._remaining[unusual] - spans)


class UnitEnd(NamedTuple):
    """A unit at its decision."""

    key: tuple[int, int]
    """Trace id and span id of the span above."""
    name: str
    duration_ns: int | None
    """The duration; None if it goes on."""
    failed: bool
    end_ns: int
    """The end of the unit, or of this part of it."""
    ranges: int
    """The number of ranges in it, or in this part of it."""
    in_worker: bool = False
    """Whether it is a worker process's, which is of no interest unless it failed."""
    is_cut: bool = False
    """Whether it is the part of a unit that a flush sends while the unit goes on."""


class Grant(NamedTuple):
    """The spans that a unit may have."""

    spans: int
    is_ordinary: bool
    """Whether it neither failed nor took unusually long."""


class _Claim(NamedTuple):
    """The spans that a unit may have if there are enough."""

    spans: int
    is_unusual: bool = False
    """Whether it failed, or took unusually long."""
    detailed: bool = False
    """Whether it is one of the first of its name, or a part."""


class Budgets:
    """The grants of spans to units, each of ``limit`` at most."""

    def __init__(self, limit: int, volume: Volume) -> None:
        self._limit, self._trace_budget = limit, volume.trace_budget
        self._ordinary = (
            limit
            if volume.ordinary_unit_budget is None
            else min(volume.ordinary_unit_budget, limit)
        )
        self._rate = SpanRate(volume.per_second) if volume.per_second is not None else None
        self._usual = UsualDurations()
        self._used: dict[int, int] = {}
        self._remaining_claims: dict[tuple[int, int], _Claim] = {}
        """The rest of what decided units claimed, for ranges that come later."""
        self._cut: dict[tuple[int, int], int] = {}
        """The spans that the parts of units had which flushes sent: the unit may have so many
        fewer.
        """

    def grant(self, end: UnitEnd) -> Grant:
        """The grant of this unit, which counts as used."""
        trace_id, _ = end.key
        before = self._remaining_claims.get(end.key)
        claim = self._claim(end) if before is None or end.failed else before
        used_by_parts = self._cut.get(end.key, 0)
        claim = claim._replace(spans=max(0, claim.spans - used_by_parts))
        granted = self._share(end, claim)
        if claim.is_unusual:
            ordinary = _Claim(min(claim.spans, self._ordinary))
            if self._share(end, ordinary) > granted:
                claim = ordinary
                granted = self._share(end, ordinary)
        used = min(granted, end.ranges)
        counted = max(0, used - 1)
        if self._rate is not None and counted:
            self._rate.use(counted, unusual=claim.is_unusual)
        trace_budget = self._used.get(trace_id, 0) + counted
        if trace_budget:
            remember(self._used, trace_id, trace_budget, MAX_TRACES)
        if end.duration_ns is not None:
            remember(
                self._remaining_claims,
                end.key,
                claim._replace(spans=max(0, claim.spans - used)),
                MAX_UNITS,
            )
            self._cut.pop(end.key, None)
        elif end.is_cut:
            remember(self._cut, end.key, used_by_parts + used, MAX_UNITS)
        return Grant(granted, not claim.is_unusual)

    def _claim(self, end: UnitEnd) -> _Claim:
        if end.failed:
            return _Claim(self._limit, is_unusual=True)
        if end.is_cut:
            return _Claim(self._ordinary)
        if end.in_worker:
            return _Claim(self._ordinary // WORKER_PART)
        seen, is_unusual = (
            self._usual.compare(end.name, end.duration_ns)
            if end.duration_ns is not None
            else (0, False)
        )
        if seen < FIRST_UNITS:
            return _Claim(self._limit, detailed=True)
        return _Claim(self._limit, is_unusual=True) if is_unusual else _Claim(self._ordinary)

    def _share(self, end: UnitEnd, claim: _Claim) -> int:
        """The part of its claim that a unit may have; at least one."""
        share = claim.spans
        part = 4 if claim.is_unusual else 5 if claim.detailed else 25
        if self._trace_budget is not None:
            free = self._trace_budget - self._used.get(end.key[0], 0)
            if not claim.is_unusual:
                free -= self._trace_budget // 2  # held back for units that fail or take long
            share = min(share, free // part)
        if self._rate is not None:
            share = min(share, self._rate.remaining(end.end_ns, unusual=claim.is_unusual) // part)
        return max(1, share)
