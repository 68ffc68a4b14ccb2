"""Deadlines, as ``time.monotonic()``."""

from __future__ import annotations

import time


def seconds_to(deadline: float) -> float:
    """The seconds from now to a deadline; 0 once it is over."""
    return max(0.0, deadline - time.monotonic())
