"""The processor time of one thread, for others: whether it computes, or waits for something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from otel_recfn.support.greenlets import threads_are_greenlets

LAST_WORK_S = 3.0
"""So much processor time a thread may have after its time is over, for what must not be missing."""
LOOK_S = 0.05
LOOKS_AT_REST, LEAST_SHARE = 20, 0.01
"""So many looks in a row it may have less than this share of a processor: then it waits for something, for long."""
_clock_of_thread = getattr(time, "pthread_getcpuclockid", None)
"""macOS has none."""


class ThreadTime:
    """Of the thread that begins it."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._begun = False
        self._seconds = 0.0

    def begin(self) -> None:
        """Called in the thread."""
        self._begun = True
        # A greenlet's number is another thread's, or nobody's, for the system.
        if _clock_of_thread is not None and not threads_are_greenlets():
            self._clock = _clock_of_thread(threading.get_ident())

    def seconds(self) -> float:
        """So much it has had; where that isn't known, it is taken to compute all the time."""
        if self._clock is None:
            return time.monotonic() if self._begun else 0.0
        try:
            self._seconds = time.clock_gettime(self._clock)
        except OSError:  # it has ended
            pass
        return self._seconds


def wait_while_it_computes(seconds: Callable[[], float], is_over: Callable[[float], bool], looks: int = LOOKS_AT_REST) -> None:
    """Until it is over; no longer than the thread computes, which bounds how long that is on any machine.

    Args:
        seconds: the processor time that the thread has had.
        is_over: waits so long at most; whether there is nothing more to wait for.
        looks: it is left where it rests for so many.
    """
    worked_s, most_s, at_rest = seconds(), seconds() + LAST_WORK_S, 0
    while at_rest < looks and worked_s < most_s and not is_over(LOOK_S):
        before, worked_s = worked_s, seconds()
        at_rest = at_rest + 1 if worked_s - before < LEAST_SHARE * LOOK_S else 0
