"""Work, by the thread's own clock: as long as it takes on a machine that does other things too."""

from __future__ import annotations

import time


def work(nanoseconds: int) -> None:
    """Until the calling thread has worked so long."""
    end = time.thread_time_ns() + nanoseconds
    while time.thread_time_ns() < end:
        pass
