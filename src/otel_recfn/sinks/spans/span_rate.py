"""How many spans there may be in a time, over all traces, so that making and sending them keeps up with the program.

Half of them are for units that fail or take unusually long, half for the others, so that neither leave the others none. What
one half has no room for, the other has.

Time is that of the units, by when they end, and not when they are decided: so the same program gives the same spans however
busy the machine is.
"""

from __future__ import annotations

NS_PER_SECOND = 1_000_000_000
BURST_SECONDS = 10
"""What wasn't used of so many seconds may be used at once."""


class SpanRate:
    """Of one sink.

    Args:
        per_second: how many spans.
    """

    def __init__(self, per_second: float) -> None:
        self._half_per_ns = per_second / NS_PER_SECOND / 2
        self.half = int(BURST_SECONDS * per_second) / 2
        """What may be used of one half at once."""
        self._ordinary = self._unusual = self.half
        """What is left of each."""
        self._at_ns = 0

    def left(self, now_ns: int, *, unusual: bool) -> int:
        """How many spans may be made now of such units. Never below 0, also where more were used than that."""
        if now_ns > self._at_ns:
            since_ns, self._at_ns = now_ns - self._at_ns, now_ns
            self._add(since_ns * self._half_per_ns)
        elif self._at_ns - now_ns > BURST_SECONDS * NS_PER_SECOND:  # somebody set the clock back
            self._at_ns = now_ns
        return int(self._unusual if unusual else self._ordinary)

    def use(self, spans: int, *, unusual: bool) -> None:
        """So many are made."""
        if unusual:
            self._unusual = max(0.0, self._unusual - spans)
        else:
            self._ordinary = max(0.0, self._ordinary - spans)

    def _add(self, spans: float) -> None:
        ordinary, unusual = self._ordinary + spans, self._unusual + spans
        self._ordinary = min(self.half, ordinary + max(0.0, unusual - self.half))
        self._unusual = min(self.half, unusual + max(0.0, ordinary - self.half))
