"""How long tests wait for what has to happen: only a hang takes that long, also on a slow machine that does much else."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 300.0


def wait_until(holds: Callable[[], bool]) -> None:
    """Where no event tells of it."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
