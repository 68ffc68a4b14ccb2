"""Ranges that have been open for long: when to look for them, and which these are.

A look asks the recorder for copies of all open ranges, which costs little and is done seldom, also where nothing else is
drained: a hang is silent. How long a range is open is told by its own times, which are monotonic, so a wall clock that is set
changes nothing.
"""

from __future__ import annotations

import time

from otel_recfn.model.batch import Batch

LOOKS = 4
"""So often it is looked within the time after which a range is told."""


class Looks:
    """When they are due."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def is_due(self, open_range_s: float | None) -> bool:
        """Whether to look now for ranges that have been open for so long; None: never."""
        return open_range_s is not None and time.monotonic() - self._last_s >= open_range_s / LOOKS

    def done(self) -> None:
        """It was looked."""
        self._last_s = time.monotonic()


def open_for(batch: Batch, open_range_s: float) -> Batch:
    """Of the open ranges that a batch has copies of, those that have been open for so long."""
    copies = slice(batch.closed, None)
    is_long = batch.end_ns[copies] - batch.start_ns[copies] >= open_range_s * 1e9
    return batch.take(copies).take(is_long)


def without_copies(batch: Batch) -> Batch:
    """The rows of what closed alone."""
    return batch if batch.closed == len(batch) else batch.take(slice(batch.closed), opened=batch.opened)
