"""How fast a background thread works: at most a share of one processor's time, but for somebody who waits; and until when.

Building spans and encoding them holds the GIL. The thread measures its own processor time and sleeps three times as long, after
each batch and wherever the inner sink lets it; but not while so much waits for it that some might have to be dropped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from otel_recfn.support.own_thread import resting


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
        self._changed = threading.Condition()
        self._waiters = 0
        self._paced_at = 0.0
        self._end_by = math.inf

    def __call__(self, owed_s: float = 0.0) -> None:
        """Sleep off the time worked since the last call.

        Args:
            owed_s: sleep so many seconds at least: for what the work costs elsewhere.

        Raises:
            GivenUp: no time is left.
        """
        worked = time.thread_time() - self._paced_at
        with resting():
            self._rest(max(owed_s, worked * (1 / self._max_share - 1)))
        self._paced_at = time.thread_time()
        if not self.time_left():
            raise GivenUp

    def hurry_up(self, more: int) -> None:
        """One more waits (+1), or one less (-1)."""
        with self._changed:
            self._waiters += more
            self._changed.notify()

    def go_on(self) -> None:
        """End the rest: so much waits by now that some might have to be dropped."""
        with self._changed:
            self._changed.notify()

    def end_in(self, timeout_s: float) -> None:
        """The work ends by then."""
        self._end_by = time.monotonic() + timeout_s
        self.hurry_up(+1)

    def end_now(self) -> None:
        """At the next call at the latest."""
        self._end_by = -math.inf

    def time_left(self) -> float:
        """Seconds until the end; without limit where none is known."""
        return max(0.0, self._end_by - time.monotonic())

    def end_in_child(self) -> None:
        """In a forked child nobody works on, and another thread may have held the lock."""
        self._changed = threading.Condition()
        self.end_now()

    def _rest(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiters or self._is_late(), min(pause_s, threading.TIMEOUT_MAX))
