"""The limit of the traces that we start (``roots_per_second``): a bucket of tokens.

    tokens
    100 ┤╲            the first hundred traces, however fast they come
        │ ╲
      1 ┤  ╲╱╲╱╲╱╲    then as many as the rate refills; what isn't used in a second is lost
        └──────────► time of the events

A trace takes one token, so none starts without one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NS_PER_SECOND = 1_000_000_000
FIRST_ROOTS = 100
CLOCK_WAS_SET_NS = 10 * NS_PER_SECOND
"""The time by which a begin is earlier than one before it only if somebody set the wall clock
back.
"""


class RootLimiter:
    """A bucket that begins with a hundred tokens, one for each trace, and is refilled up to the
    tokens of a second, at least to one.

    Time is that of the events, so what is admitted doesn't depend on how far behind the sink is. A
    rate of None admits all.
    """

    def __init__(self, roots_per_second: float | None) -> None:
        self._rate = roots_per_second
        self._tokens = float(FIRST_ROOTS)
        """The tokens at ``_at_ns``."""
        self._at_ns = 0

    def admit(self, now_ns: int) -> bool:
        """Whether a trace may start at ``now_ns``; takes a token if so."""
        if not self.admits(now_ns):
            return False
        self._tokens = self._tokens_at(now_ns) - 1
        self._at_ns = max(self._at_ns, now_ns)  # threads report interleaved
        return True

    def admits(self, now_ns: int) -> bool:
        """Whether a trace may start at ``now_ns``."""
        if self._rate is None:
            return True
        if self._was_set_back(now_ns):
            self._at_ns = now_ns
        return self._tokens_at(now_ns) >= 1

    def may_admit(self, times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these times ``admits`` has to be asked about; it refuses all others, as long as
        it has admitted none of them.
        """
        if self._rate is None:
            return np.ones(len(times_ns), np.bool_)
        elapsed_ns = times_ns - self._at_ns
        refilled = self._tokens + self._rate * elapsed_ns / NS_PER_SECOND
        has_token = np.minimum(refilled, max(self._rate, 1.0)) >= 1
        was_set_back = elapsed_ns < -CLOCK_WAS_SET_NS
        return np.asarray(has_token | was_set_back | (self._tokens >= 1), np.bool_)

    def _tokens_at(self, now_ns: int) -> float:
        if self._rate is None:
            return float("inf")
        elapsed_ns = now_ns - self._at_ns
        refilled = self._tokens + self._rate * elapsed_ns / NS_PER_SECOND
        return max(self._tokens, min(refilled, max(self._rate, 1.0)))

    def _was_set_back(self, now_ns: int) -> bool:
        return now_ns - self._at_ns < -CLOCK_WAS_SET_NS
