"""What a range spent in itself: its duration without its direct children's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventKind

Amounts = NDArray[np.int64]
Rows = NDArray[np.int64]


def self_times(rows: Batch) -> Amounts:
    """Nanoseconds per row, 0 for asynchronous ranges, marks and memory.

    Children count where they ran on their parent's thread, one after the other; what ran beside it (asynchronous ranges, other
    threads) doesn't shorten it. Source: ``FunctionEvent.self_cpu_time_total`` of torch.autograd.profiler_util.
    """
    synchronous = (rows.kind == EventKind.RANGE) & (rows.flags & EventFlag.ASYNC == 0)
    spent: Amounts = np.where(synchronous, rows.end_ns - rows.start_ns, 0)
    child, parent = children_with_parents(rows)
    counts = (rows.thread[child] == rows.thread[parent]) & synchronous[child] & synchronous[parent]
    return _without(spent, child[counts], parent[counts])


def allocated_bytes(rows: Batch) -> Amounts:
    """Bytes per row that were allocated within it and its descendants, less those that were freed; any device."""
    total: Amounts = np.where(rows.kind == EventKind.MEMORY, rows.nbytes, 0)
    child, parent = children_with_parents(rows)
    above = np.full(len(rows), -1, np.int64)
    above[child] = parent
    reports = np.flatnonzero(total)
    amounts, reached = total[reports], above[reports]
    while len(reached):
        inside = reached >= 0
        amounts, reached = amounts[inside], reached[inside]
        np.add.at(total, reached, amounts)
        reached = above[reached]
    return total


def self_bytes(rows: Batch, allocated: Amounts) -> Amounts:
    """Per row what it allocated (``allocated_bytes``) without its direct child ranges."""
    child, parent = children_with_parents(rows)
    ranges = rows.kind[child] == EventKind.RANGE
    return _without(allocated, child[ranges], parent[ranges])


def children_with_parents(rows: Batch) -> tuple[Rows, Rows]:
    """Rows whose parent is here, and their parents' rows."""
    order = np.argsort(rows.event_id)
    child = np.flatnonzero(rows.parent != 0)
    if not len(child):
        return child, child
    place: Rows = order[np.minimum(np.searchsorted(rows.event_id, rows.parent[child], sorter=order), len(order) - 1)]
    found = rows.event_id[place] == rows.parent[child]
    return child[found], place[found]


def _without(amounts: Amounts, child: Rows, parent: Rows) -> Amounts:
    own: Amounts = amounts.copy()
    np.subtract.at(own, parent, amounts[child])
    return own
