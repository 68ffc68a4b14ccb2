"""How long tests wait for what has to happen: only a hang takes that long, also on a slow
machine that does much else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 300.0


def wait_until(holds: Callable[[], bool]) -> None:
    """Where no event tells of it."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def let_time_pass(nanoseconds: int) -> None:
    """Where clocks differ by a little; without sleeping, which takes longer than it is asked to."""
    end_ns = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end_ns:
        pass


@contextmanager
def within_time(nanoseconds: int) -> Iterator[None]:
    """So long on either side, for a reader that rounds."""
    let_time_pass(nanoseconds)
    yield
    let_time_pass(nanoseconds)
