"""Rows in the order of their ends, where parents stand before children that ran on other threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS

_ORDINAL = np.uint64(ORDINAL_BITS)


def children_first(batch: Batch) -> Batch:
    """The batch with each row after those that ended before it.

    A drain reads one thread after the other. So a range may stand before one of another thread that lies in it.
    """
    crosses = (batch.parent != 0) & (batch.parent >> _ORDINAL != batch.event_id >> _ORDINAL)
    if not crosses.any() or batch.closed < len(batch):
        return batch
    order = np.argsort(batch.end_ns, kind="stable")
    return replace(batch.take(order), opened=batch.opened)
