"""How fast a background thread works: at most a share of one processor's time, but for somebody who waits; and until when.

Building spans and encoding them holds the GIL. The thread measures its own processor time and sleeps three times as long, after
each batch and wherever the inner sink lets it; but not while so much waits for it that some might have to be dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from otel_recfn.support.own_thread import resting
from otel_recfn.support.waker import Waker

RESERVE_S = 1.0
RESERVED_SHARE = 0.2
"""The share of the time for ``close`` that is kept for spans which must not be missing; at most ``RESERVE_S`` seconds."""


class GivenUp(BaseException):
    """The time is over; not an error of the sink, which must not catch it."""


class Pace:
    """Called between pieces of work: sleeps, or raises to end the work.

    Args:
        max_share: of one processor's time, how much the thread may take while nobody waits for it.
        is_late: whether so much waits that it should go on without a rest.
    """

    def __init__(self, max_share: float, is_late: Callable[[], bool]) -> None:
        self._max_share, self._is_late = max_share, is_late
        self._waker = Waker()
        self._urgent: list[None] = []
        """One for each who waits."""
        self._paced_at = 0.0
        self._end_by, self._reserve_s = math.inf, 0.0

    def __call__(self, owed_s: float = 0.0) -> None:
        """Sleep off the time worked since the last call.

        Args:
            owed_s: sleep so many seconds at least: for what the work costs elsewhere.

        Raises:
            GivenUp: little more than the reserved time is left.
        """
        worked = time.thread_time() - self._paced_at
        with resting():
            self._rest(max(owed_s, worked * (1 / self._max_share - 1)))
        self._paced_at = time.thread_time()
        if self.time_left() <= self._reserve_s:
            raise GivenUp

    def hurry_up(self, more: int) -> None:
        """One more waits (+1), or one less (-1)."""
        if more > 0:
            self._urgent.append(None)
        else:
            self._urgent.pop()
        self._waker.wake()

    def go_on(self) -> None:
        """End the rest: so much waits by now that some might have to be dropped."""
        self._waker.wake()

    def end_in(self, timeout_s: float) -> None:
        """The work ends by then, and what is not reserved of the time before."""
        self._end_by, self._reserve_s = time.monotonic() + timeout_s, min(RESERVE_S, RESERVED_SHARE * timeout_s)
        self.hurry_up(+1)

    def end_now(self) -> None:
        """At the next call at the latest."""
        self._end_by = -math.inf

    def time_left(self) -> float:
        """Seconds until the end; without limit where none is known."""
        return max(0.0, self._end_by - time.monotonic())

    def time_to_supersede(self) -> float:
        """Seconds until a worker that waits for an exporter is not waited for any more."""
        return max(0.0, self.time_left() - self._reserve_s / 2)

    def end_in_child(self) -> None:
        """In a forked child nobody works on."""
        self.end_now()

    def _rest(self, pause_s: float) -> None:
        if not self._urgent and not self._is_late():
            self._waker.wait(pause_s)
