"""The times when something ran: how much of any stretch of time that was."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class BusyTime:
    """The times when something ran, as stretches that neither overlap nor touch each other."""

    def __init__(self, start_ns: Numbers, end_ns: Numbers) -> None:
        order = np.argsort(start_ns, kind="stable")
        start = start_ns[order]
        end = np.maximum.accumulate(end_ns[order])
        begins = np.append(np.ones(min(len(start), 1), np.bool_), start[1:] > end[:-1])
        self.begin_ns = start[begins]
        self._lengths = end[np.append(begins[1:], begins[:1])] - self.begin_ns
        self._passed = np.append(0, np.cumsum(self._lengths))

    @property
    def total_ns(self) -> int:
        """The time in which something ran."""
        return int(self._passed[-1])

    def time_during(self, start_ns: Numbers, end_ns: Numbers) -> Numbers:
        """The part of the time from each of these starts to its end in which something ran."""
        return np.asarray(self._busy_until(end_ns) - self._busy_until(start_ns))

    def _busy_until(self, at_ns: Numbers) -> Numbers:
        if not len(self.begin_ns):
            return np.zeros(len(at_ns), np.int64)
        position = np.maximum(np.searchsorted(self.begin_ns, at_ns, side="right") - 1, 0)
        inside = np.clip(at_ns - self.begin_ns[position], 0, self._lengths[position])
        return np.asarray(self._passed[position] + inside)
