"""Adds the durations of a batch to the sums of their series.

Only ranges that have ended count: one that is sealed while it is open has no duration yet.
"""

from __future__ import annotations

from otel_recfn import _native
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.power_indices import rule_arguments
from otel_recfn.sinks.metrics.series import Slots
from otel_recfn.sinks.metrics.sums import DurationSums


def find_series(batch: Batch, slots: Slots, numbers: Slots) -> list[int]:
    """Write the series of each row into ``numbers``: -1 for none, as it is no range, or partial; -2 where none is known.

    Returns ``name * NUM_SCOPES + scope`` of each range that ``slots`` has no series for, in the order of rows.
    """
    return _native.find_series(batch, slots, numbers)


def add_durations(batch: Batch, numbers: Slots, sums: DurationSums) -> None:
    """Add a batch, all of whose series are known and have room.

    Args:
        batch: the batch.
        numbers: the series of each row, as ``find_series`` writes them.
        sums: what it is added to.
    """
    bounded = list(zip(sums.layout.least_ns, sums.bounded, strict=True))
    powers = [(*rule_arguments(one.rule), one.ranges, one.counts) for one in sums.powers]
    _native.add_durations(batch, numbers, sums.series, bounded, powers)
