"""How many spans of ours a unit may have: a unit is one span of the program's, or one root of ours, with the ranges below it.

    the first units of a name, and a part of one that goes on   up to span_budget, a fifth of what is free
    one that failed, or took unusually long                     up to span_budget, a quarter of what is left
    ordinary ones                                               up to ordinary_span_budget, a 25th of what is free
    a worker process's, whatever came before                    a fifth of what ordinary ones have

One half of a trace's budget is *free*, the other is held back for units that fail or take long. So is half of what the program
may have in a time (``SpanRate``); the smaller share counts. Every unit may have one span, whatever is left, and that is not
counted.

Ranges that come below a span when its unit has been decided, as those of a background task after the response, have what that
unit left of what it might have had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_recfn.sinks.spans.surroundings import remember

NS_PER_SECOND = 1_000_000_000
DURATIONS = 1023
"""So many units of a name are remembered, the last ones: their median is what is usual."""
UNUSUAL = 16
"""One in so many may be unusual: where all take longer than before, as on a machine that is busy, most of them aren't."""
MAX_NAMES = 4096
"""Of names that units had last, the usual durations are known."""
BURST_SECONDS = 10
"""What wasn't used of so many seconds may be used at once."""
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
    per_second: float | None = None
    """Of all units in a time. None: any number."""


EVERY_RANGE = Volume(None)


@dataclass(slots=True)
class _Durations:
    """Of the last units of a name."""

    in_order: deque[int] = field(default_factory=deque)
    sorted: list[int] = field(default_factory=list)
    seen: int = 0


class UsualDurations:
    """How long units of a name usually take."""

    def __init__(self) -> None:
        self._of_name: dict[str, _Durations] = {}

    def compare(self, name: str, duration_ns: int) -> tuple[int, bool]:
        """How many units of the name came before this one, and whether it took unusually long.

        Those did that took more than twice the median and are among the longest.
        """
        known = self._of_name.get(name) or _Durations()
        remember(self._of_name, name, known, MAX_NAMES)
        place, count = bisect_left(known.sorted, duration_ns), len(known.sorted)
        is_unusual = count > 0 and count - place <= count // UNUSUAL and duration_ns > 2 * max(1, known.sorted[count // 2])
        known.seen += 1
        known.in_order.append(duration_ns)
        known.sorted.insert(place, duration_ns)
        if count == DURATIONS:
            del known.sorted[bisect_left(known.sorted, known.in_order.popleft())]
        return known.seen - 1, is_unusual


class SpanRate:
    """How many spans there may be in a time, over all traces, so that making and sending them keeps up with the program.

    Half of them are for units that fail or take unusually long, half for the others, so that neither leave the others none.
    What one half has no room for, the other has. Time is that of the units, by when they end, and not when they are decided: so
    the same program gives the same spans however busy the machine is.
    """

    def __init__(self, per_second: float) -> None:
        self._half_per_ns = per_second / NS_PER_SECOND / 2
        self._half = int(BURST_SECONDS * per_second) / 2
        """What may be used of one half at once."""
        self._ordinary = self._unusual = self._half
        """What is left of each."""
        self._at_ns = 0

    def left(self, now_ns: int, *, unusual: bool) -> int:
        """How many spans may be made now of such units. Never below 0, also where more were used than that."""
        if now_ns > self._at_ns:
            more, self._at_ns = (now_ns - self._at_ns) * self._half_per_ns, now_ns
            ordinary, others = self._ordinary + more, self._unusual + more
            self._ordinary = min(self._half, ordinary + max(0.0, others - self._half))
            self._unusual = min(self._half, others + max(0.0, ordinary - self._half))
        elif self._at_ns - now_ns > BURST_SECONDS * NS_PER_SECOND:  # somebody set the clock back
            self._at_ns = now_ns
        return int(self._unusual if unusual else self._ordinary)

    def use(self, spans: int, *, unusual: bool) -> None:
        """So many are made."""
        if unusual:
            self._unusual = max(0.0, self._unusual - spans)
        else:
            self._ordinary = max(0.0, self._ordinary - spans)


class UnitEnd(NamedTuple):
    """What is known of a unit when it is decided."""

    key: tuple[int, int]
    """Trace id and span id of the span above."""
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


class Grant(NamedTuple):
    """What a unit may have."""

    spans: int
    is_ordinary: bool
    """It neither failed nor took unusually long."""


class _Claim(NamedTuple):
    """What a unit may have, where there is enough."""

    spans: int
    is_unusual: bool = False
    """It failed, or took unusually long."""
    detailed: bool = False
    """It is one of the first, or a part."""


class Budgets:
    """Grants spans to units, which have ``most`` at most."""

    def __init__(self, most: int, volume: Volume) -> None:
        self._most, self._of_trace = most, volume.of_trace
        self._ordinary = most if volume.of_ordinary_unit is None else min(volume.of_ordinary_unit, most)
        self._rate = SpanRate(volume.per_second) if volume.per_second is not None else None
        self._usual = UsualDurations()
        self._used: dict[int, int] = {}
        self._left_of: dict[tuple[int, int], _Claim] = {}
        """What units that were decided left of what they claimed, for ranges that come later."""

    def grant(self, end: UnitEnd) -> Grant:
        """What this unit may have; it counts as used."""
        trace_id, _ = end.key
        before = self._left_of.get(end.key)
        claim = self._claim(end) if before is None or end.failed else before
        granted = self._share(end, claim)
        if claim.is_unusual:
            ordinary = _Claim(min(claim.spans, self._ordinary))
            if self._share(end, ordinary) > granted:
                claim, granted = ordinary, self._share(end, ordinary)
        used = min(granted, end.ranges)
        counted = max(0, used - 1)
        if self._rate is not None and counted:
            self._rate.use(counted, unusual=claim.is_unusual)
        of_trace = self._used.get(trace_id, 0) + counted
        if of_trace:
            remember(self._used, trace_id, of_trace, MAX_TRACES)
        if end.duration_ns is not None:
            remember(self._left_of, end.key, claim._replace(spans=max(0, claim.spans - used)), MAX_UNITS)
        return Grant(granted, not claim.is_unusual)

    def _claim(self, end: UnitEnd) -> _Claim:
        if end.failed:
            return _Claim(self._most, is_unusual=True)
        if end.aside:
            return _Claim(self._ordinary // ASIDE)
        seen, is_unusual = self._usual.compare(end.name, end.duration_ns) if end.duration_ns is not None else (0, False)
        if seen < FIRST_UNITS:
            return _Claim(self._most, detailed=True)
        return _Claim(self._most, is_unusual=True) if is_unusual else _Claim(self._ordinary)

    def _share(self, end: UnitEnd, claim: _Claim) -> int:
        """How much of its claim a unit may have; at least one."""
        share, part = claim.spans, 4 if claim.is_unusual else 5 if claim.detailed else 25
        if self._of_trace is not None:
            left = self._of_trace - self._used.get(end.key[0], 0)
            share = min(share, (left if claim.is_unusual else left - self._of_trace // 2) // part)
        if self._rate is not None:
            share = min(share, self._rate.left(end.end_ns, unusual=claim.is_unusual) // part)
        return max(1, share)
