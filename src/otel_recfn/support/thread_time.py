"""The processor time of one thread, for others: whether it computes, or waits for something."""

from __future__ import annotations

import threading
import time

_clock_of_thread = getattr(time, "pthread_getcpuclockid", None)
"""macOS has none."""


class ThreadTime:
    """Of the thread that begins it."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """Called in the thread."""
        if _clock_of_thread is not None:
            self._clock = _clock_of_thread(threading.get_ident())

    def seconds(self) -> float:
        """So much it has had; where that isn't known, it is taken to compute all the time."""
        if _clock_of_thread is None:
            return time.monotonic()
        try:
            self._seconds = time.clock_gettime(self._clock) if self._clock is not None else 0.0
        except OSError:  # it has ended
            pass
        return self._seconds
