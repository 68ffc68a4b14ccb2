"""Parts of a batch, by time: what drains would have given that had come more often.

A sink whose work takes long may look at the clock between two parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from otel_recfn.model.batch import Batch

PART_SECONDS = 0.1
"""The time that the receiver takes for a part."""
FIRST_WEIGHT, MIN_WEIGHT = 10_000, 2_000
GROWTH = 4
OPENED_WEIGHT = 200
"""The weight of an announced range, in rows: outside of the program's spans a sampler may be
asked for each of them.
"""


class Parts:
    """A cutter of batches into parts that take their receiver a tenth of a second, by what earlier
    ones took.
    """

    def __init__(self) -> None:
        self._limit = FIRST_WEIGHT
        """The most that the next part weighs, unless more happened at one moment."""

    def cut(self, batch: Batch) -> Iterator[Batch]:
        """The parts of a batch, in the order of time.

        The time is taken until the next one is asked for.
        """
        ends = batch.end_ns
        begins = batch.opened.columns["start_ns"]
        weight = len(ends) + OPENED_WEIGHT * len(begins)
        if weight <= self._limit:
            yield from self._measure(batch, weight)
            return
        times = np.concatenate([ends, begins])
        order = np.argsort(times, kind="stable")
        weights = np.where(order < len(ends), 1, OPENED_WEIGHT)
        times = times[order]
        reached = np.cumsum(weights)
        done = 0
        while done < len(times):
            before = int(reached[done - 1]) if done else 0
            fits = int(np.searchsorted(reached, before + self._limit, side="right"))
            until_ns = times[max(fits, done + 1) - 1]
            after_ns = times[done - 1] if done else np.iinfo(np.int64).min
            done = int(np.searchsorted(times, until_ns, side="right"))
            part = _batch_between(batch, after_ns, until_ns)
            if done == len(times):
                part = replace(part, steps=batch.steps, samples=batch.samples)
            yield from self._measure(part, int(reached[done - 1]) - before)

    def _measure(self, part: Batch, weight: int) -> Iterator[Batch]:
        began = time.monotonic()
        yield part
        seconds = time.monotonic() - began
        if seconds > PART_SECONDS or 2 * weight >= self._limit:
            fits = weight * PART_SECONDS / max(seconds, 1e-6)
            self._limit = int(min(max(fits, MIN_WEIGHT), GROWTH * self._limit))


def _batch_between(batch: Batch, after_ns: int, until_ns: int) -> Batch:
    """What ended and what was announced between two moments, the second one included."""
    rows = np.flatnonzero((batch.end_ns > after_ns) & (batch.end_ns <= until_ns))
    begins = batch.opened.columns["start_ns"]
    return batch.take(rows, opened=batch.opened.take((begins > after_ns) & (begins <= until_ns)))
