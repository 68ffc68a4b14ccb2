"""Time as types: ticks while recording, Unix nanoseconds everywhere else, one conversion.

The conversion is piecewise linear through anchors, one taken at every drain. It never decreases, so what nested in ticks
nests in nanoseconds, and it follows the wall clock: what it is off, be it drift, jitter or a step back, is slewed away over the
next second, at 10 % at most; a step forward of more than a second is taken at once. The rate itself is measured again over each
second or more. The native recorder follows the same rules in ``native/clock.hpp``.
"""

from __future__ import annotations

from typing import NewType

Ticks = NewType("Ticks", int)
UnixNanoseconds = NewType("UnixNanoseconds", int)

MAX_SLEW = 0.1
HORIZON_NS = 1_000_000_000
"""Shorter than this, a difference of two readings is more jitter than rate."""
PLAUSIBLE = 1e-3
"""A rate that changed by more tells of a wall clock that was set, not of the ticks."""
FORWARD_STEP_NS = 1_000_000_000


class ClockMapping:
    """Converts ticks to Unix nanoseconds.

    Args:
        ticks: the first anchor's ticks.
        unix_ns: the wall clock at that moment, in Unix nanoseconds.
        ns_per_tick: the nominal rate.
    """

    def __init__(self, ticks: Ticks, unix_ns: UnixNanoseconds, ns_per_tick: float = 1.0) -> None:
        self._nominal = self._rate = self._rate_before = ns_per_tick
        self._ticks, self._unix_ns, self._unix_ns_before = int(ticks), int(unix_ns), int(unix_ns)
        self._rated_ticks, self._rated_unix_ns = int(ticks), int(unix_ns)

    def anchor(self, ticks: Ticks, unix_ns: UnixNanoseconds) -> None:
        """Note that the wall clock read ``unix_ns`` at ``ticks``; conversions from here on aim for it."""
        elapsed = ticks - self._ticks
        if elapsed <= 0:
            return
        predicted = int(self.to_unix_ns(ticks))
        error = unix_ns - predicted
        step = error > FORWARD_STEP_NS
        self._rate_before, self._unix_ns_before = self._rate, predicted
        self._measure_rate(int(ticks), int(unix_ns))
        slew = 0.0 if step else error / max(elapsed * self._nominal, HORIZON_NS)
        self._rate = self._nominal * (1 + max(-MAX_SLEW, min(MAX_SLEW, slew)))
        self._ticks, self._unix_ns = int(ticks), int(unix_ns) if step else predicted

    def to_unix_ns(self, ticks: Ticks) -> UnixNanoseconds:
        """The wall clock at ``ticks``, in Unix nanoseconds.

        Ticks before the last anchor stay on the line that led to it, so that a late record never overtakes an earlier one.
        """
        distance = ticks - self._ticks
        if distance < 0:
            return UnixNanoseconds(self._unix_ns_before + round(distance * self._rate_before))
        return UnixNanoseconds(self._unix_ns + round(distance * self._rate))

    def _measure_rate(self, ticks: int, unix_ns: int) -> None:
        elapsed = ticks - self._rated_ticks
        if elapsed * self._nominal < HORIZON_NS:
            return
        measured = (unix_ns - self._rated_unix_ns) / elapsed
        if abs(measured / self._nominal - 1) < PLAUSIBLE:
            self._nominal = measured
        self._rated_ticks, self._rated_unix_ns = ticks, unix_ns
