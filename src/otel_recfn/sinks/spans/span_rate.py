"""How many spans there may be in a time, over all traces, so that making and sending them keeps up with the program.

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
        self._per_ns = per_second / NS_PER_SECOND
        self.most = int(BURST_SECONDS * per_second)
        """What may be used at once."""
        self._left = float(self.most)
        self._at_ns = 0

    def left(self, now_ns: int) -> int:
        """How many spans may be made now. Never below 0, also where more were used than that."""
        if now_ns > self._at_ns:
            since_ns, self._at_ns = now_ns - self._at_ns, now_ns
            self._left = min(self._left + since_ns * self._per_ns, float(self.most))
        elif self._at_ns - now_ns > BURST_SECONDS * NS_PER_SECOND:  # somebody set the clock back
            self._at_ns = now_ns
        return int(self._left)

    def use(self, spans: int) -> None:
        """So many are made."""
        self._left = max(0.0, self._left - spans)
