"""Limits how many traces we start ourselves: the first hundred at once, then so many a second."""

from __future__ import annotations

FIRST_ROOTS = 100
NS_PER_SECOND = 1_000_000_000
CLOCK_WAS_SET_NS = 10 * NS_PER_SECOND
"""Where a begin is this much earlier than one before it, somebody set the wall clock back: no thread reports so late."""


class RootLimiter:
    """A token bucket that begins with a hundred tokens and isn't filled that high again.

    Time is that of the events, so what is admitted doesn't depend on how far behind the sink is.

    Args:
        roots_per_second: tokens a second; None admits everything.
    """

    def __init__(self, roots_per_second: float | None) -> None:
        self._rate = roots_per_second
        self._tokens = float(FIRST_ROOTS)
        self._at_ns = 0

    def admit(self, now_ns: int) -> bool:
        """Whether a trace may start at ``now_ns``; takes a token if so."""
        if self._rate is None:
            return True
        self._refill(now_ns, self._rate)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now_ns: int, rate: float) -> None:
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns < -CLOCK_WAS_SET_NS:
            self._at_ns = now_ns
        if elapsed_ns <= 0:  # threads report interleaved
            return
        refilled = self._tokens + rate * elapsed_ns / NS_PER_SECOND
        self._tokens = max(self._tokens, min(refilled, max(rate, 1.0)))
        self._at_ns = now_ns
