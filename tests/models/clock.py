"""What ``native/core/clock.hpp`` does with readings of the clocks, whose comment states the rules."""

from __future__ import annotations

from typing import NamedTuple, NewType

Ticks = NewType("Ticks", int)
MonotonicNanoseconds = NewType("MonotonicNanoseconds", int)
UnixNanoseconds = NewType("UnixNanoseconds", int)

JUMP_NS = 1_000_000_000
"""A larger change of the offset is a jump; a line with a larger error is replaced by a new one."""
SMALLEST_CHANGE_NS = 10_000
"""Smaller differences between the readings of two clocks are jitter."""
HORIZON_NS = 1_000_000_000
"""Over less time the rate can't be measured: the jitter of the readings is too large."""
MAX_SLEW = 500e-6
PRECISE_NS = 100_000
"""A reading that took longer is too inexact to measure a rate."""
KEPT_LINES = 8
"""For so many drains back the lines are kept, so that a record which arrives late is converted as others of its time."""


class Reading(NamedTuple):
    """All clocks at one moment."""

    ticks: int
    monotonic_ns: int
    unix_ns: int
    took_ns: int
    """How long reading them took, and so how uncertain they are."""


class _Line(NamedTuple):
    ticks: int
    monotonic_ns: int
    rate: float

    def at(self, ticks: int) -> int:
        return self.monotonic_ns + round((ticks - self.ticks) * self.rate)


class ClockMapping:
    """Converts ticks to monotonic nanoseconds, and knows what to add for Unix nanoseconds.

    Args:
        now: the first reading.
        ns_per_tick: the rate until it was measured; 1.0 says that ticks are the monotonic clock.
    """

    def __init__(self, now: Reading, ns_per_tick: float = 1.0) -> None:
        self._nominal = ns_per_tick
        self._lines: tuple[_Line, ...] = ()
        self._begin_line(now)
        self.begin(now)

    def begin(self, now: Reading) -> None:
        """A recording begins: its line and its offset are what the clocks say now, whatever they were before."""
        self._follow_ticks(now)
        if now.ticks < self._lines[-1].ticks:
            self._begin_line(now)
        self._lines = (*self._lines[:-1], _Line(now.ticks, now.monotonic_ns, self._nominal))
        self.offset_ns = now.unix_ns - now.monotonic_ns

    def anchor(self, now: Reading) -> int:
        """Note what the clocks read. Returns by how much the wall clock jumped, 0 where it didn't."""
        self._follow_ticks(now)
        change = now.unix_ns - now.monotonic_ns - self.offset_ns
        if abs(change) > max(SMALLEST_CHANGE_NS, now.took_ns):
            self.offset_ns += change
        return change if abs(change) > JUMP_NS + now.took_ns else 0

    def monotonic_ns(self, ticks: Ticks) -> MonotonicNanoseconds:
        """The monotonic clock at ``ticks``: never less than at fewer ticks."""
        for line in reversed(self._lines):
            if line.ticks <= ticks:
                return MonotonicNanoseconds(line.at(ticks))
        return MonotonicNanoseconds(self._lines[0].at(ticks))

    def _follow_ticks(self, now: Reading) -> None:
        last = self._lines[-1]
        predicted = last.at(now.ticks)
        error = now.monotonic_ns - predicted
        if abs(error) > JUMP_NS:  # the ticks themselves jumped: the machine slept, or moved to another one
            self._begin_line(now)
        elif now.ticks > last.ticks:
            self._measure_rate(now)
            slew = error / max((now.ticks - last.ticks) * self._nominal, HORIZON_NS)
            rate = self._nominal * (1 + max(-MAX_SLEW, min(MAX_SLEW, slew)))
            self._lines = (*self._lines, _Line(now.ticks, predicted, rate))[-KEPT_LINES:]

    def _begin_line(self, now: Reading) -> None:
        self._lines = (_Line(now.ticks, now.monotonic_ns, self._nominal),)
        self._rated = now

    def _measure_rate(self, now: Reading) -> None:
        elapsed = now.ticks - self._rated.ticks
        if elapsed * self._nominal < HORIZON_NS or now.took_ns > PRECISE_NS:
            return
        if self._rated.took_ns <= PRECISE_NS:
            self._nominal = (now.monotonic_ns - self._rated.monotonic_ns) / elapsed
        self._rated = now
