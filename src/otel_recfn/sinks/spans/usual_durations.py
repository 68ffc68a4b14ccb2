"""How long units of a name usually take, and how many times as long those take that take unusually long."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

DURATIONS = 1023
"""So many units of a name are remembered, the last ones: their median is what is usual."""
UNUSUAL = 16
"""One in so many may be unusual: where all take longer than before, as on a machine that is busy, most of them aren't."""
MAX_NAMES = 4096


@dataclass(slots=True)
class _Durations:
    """Of the last units of a name."""

    in_order: deque[int] = field(default_factory=deque)
    sorted: list[int] = field(default_factory=list)
    seen: int = 0

    def add(self, duration_ns: int) -> None:
        self.seen += 1
        self.in_order.append(duration_ns)
        insort(self.sorted, duration_ns)
        if len(self.in_order) > DURATIONS:
            del self.sorted[bisect_left(self.sorted, self.in_order.popleft())]

    def times(self, duration_ns: int) -> float:
        """How many times the median this is, where that is more than twice and among the longest; 0 elsewhere."""
        longer = len(self.sorted) - bisect_left(self.sorted, duration_ns)
        if not self.sorted or longer > len(self.sorted) // UNUSUAL:
            return 0.0
        times = duration_ns / max(1, self.sorted[len(self.sorted) // 2])
        return times if times > 2 else 0.0


class UsualDurations:
    """By name; of names that units had last."""

    def __init__(self) -> None:
        self._of_name: dict[str, _Durations] = {}

    def compare(self, name: str, duration_ns: int) -> tuple[int, float]:
        """How many units of the name came before this one, and how many times the usual it took, 0 if that isn't unusual."""
        known = self._of_name.pop(name, None) or _Durations()
        self._of_name[name] = known
        if len(self._of_name) > MAX_NAMES:
            del self._of_name[next(iter(self._of_name))]
        seen, times = known.seen, known.times(duration_ns)
        known.add(duration_ns)
        return seen, times
