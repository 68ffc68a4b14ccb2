"""Steps that have to be taken although memory is short: an open file that is given up would stay open otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from otel_recfn.model.errors import ATTEMPTS, OUT_OF_MEMORY

T = TypeVar("T")


def insist(step: Callable[[T], object], on: T, pause_s: float = 0.0) -> None:
    """Take a step, again where it finds no memory, which often is there a moment later. It has to bear being taken twice.

    Called with a function and not with a bound method, which would need memory before the first attempt.

    Args:
        step: it.
        on: is given to it.
        pause_s: sleep so long before each further attempt.

    Raises:
        MemoryError, SystemError: there was none in any of the attempts.
    """
    left = ATTEMPTS  # counted down, because a loop over numbers needs memory before it begins
    while True:
        left -= 1
        try:
            step(on)
            return
        except OUT_OF_MEMORY:
            if not left:
                raise
        if pause_s:
            time.sleep(pause_s)
