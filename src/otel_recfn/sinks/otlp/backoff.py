"""How long to wait before a request is sent again: ever longer, and by chance, so that not all clients come back at once."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 1.0
FACTOR = 1.5
LONGEST_S = 30.0
JITTER = 0.5


class Backoff:
    """Of one destination.

    Args:
        chance: a number from 0 to 1. Not Python's own numbers by chance, which the program seeds and draws from.
        first_s, longest_s: seconds without chance.
    """

    def __init__(
        self, chance: Callable[[], float] | None = None, first_s: float = FIRST_S, longest_s: float = LONGEST_S
    ) -> None:
        self._chance = chance or random.SystemRandom().random
        self._first_s, self._longest_s = first_s, longest_s
        self.failures = 0
        """Since something answered."""
        self._pauses = 0
        """Of those that grow."""

    def delay_s(self, told_s: float | None) -> float:
        """After another failure; what the server told is what is waited for at least."""
        usual_s = min(self._first_s * FACTOR ** min(self._pauses, 50), self._longest_s)
        self.failures += 1
        self._pauses += 1
        usual_s *= 1 - JITTER + 2 * JITTER * self._chance()
        return usual_s if told_s is None else told_s * (1 + self._chance() * 0.1)

    def reset(self) -> None:
        """Something answered."""
        self.failures = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """The next pause is short again, and they grow from there."""
        self._pauses = 0
