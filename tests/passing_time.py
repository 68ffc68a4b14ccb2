"""Time that passes between begins and ends, where clocks differ by a little or a reader rounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def let_time_pass(nanoseconds: int) -> None:
    """Without sleeping, which takes longer than it is asked to."""
    end_ns = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end_ns:
        pass


@contextmanager
def within_time(nanoseconds: int) -> Iterator[None]:
    """So long on either side."""
    let_time_pass(nanoseconds)
    yield
    let_time_pass(nanoseconds)
