"""What a range spent in itself: its own amount without its direct children's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventKind

Amounts = NDArray[np.int64]
Rows = NDArray[np.int64]


class Nesting(NamedTuple):
    """Who lies directly in whom, as columns of equal length."""

    child: Rows
    """Rows whose parent is in the batch too."""
    parent: Rows
    """The rows of these parents."""


def nesting(rows: Batch) -> Nesting:
    """Found once for all that is asked below."""
    child = np.flatnonzero(rows.parent != 0)
    if not len(child):
        return Nesting(child, child)
    order = np.argsort(rows.event_id)
    place: Rows = order[np.minimum(np.searchsorted(rows.event_id, rows.parent[child], sorter=order), len(order) - 1)]
    found = rows.event_id[place] == rows.parent[child]
    return Nesting(child[found], place[found])


def self_times(rows: Batch, nested: Nesting) -> Amounts:
    """Nanoseconds per row, 0 for asynchronous ranges, marks and memory.

    Children count where they ran on their parent's thread, one after the other; what ran beside it (asynchronous ranges, other
    threads) doesn't shorten it. Source: ``FunctionEvent.self_cpu_time_total`` of torch.autograd.profiler_util.
    """
    child, parent = nested
    synchronous = (rows.kind == EventKind.RANGE) & (rows.flags & EventFlag.ASYNC == 0)
    spent: Amounts = np.where(synchronous, rows.end_ns - rows.start_ns, 0)
    counts = (rows.thread[child] == rows.thread[parent]) & synchronous[child] & synchronous[parent]
    return _without(spent, child[counts], parent[counts])


def allocated_bytes(rows: Batch, nested: Nesting) -> Amounts:
    """Bytes per row that were allocated within it and its descendants, less those that were freed; any device."""
    total: Amounts = np.where(rows.kind == EventKind.MEMORY, rows.nbytes, 0)
    reports = np.flatnonzero(total)
    if not len(reports):
        return total
    above = np.full(len(rows), -1, np.int64)
    above[nested.child] = nested.parent
    amounts, reached = total[reports], above[reports]
    while len(reached):
        inside = reached >= 0
        amounts, reached = amounts[inside], reached[inside]
        np.add.at(total, reached, amounts)
        reached = above[reached]
    return total


def self_bytes(rows: Batch, allocated: Amounts, nested: Nesting) -> Amounts:
    """Per row what it allocated (``allocated_bytes``) without its direct child ranges."""
    child, parent = nested
    counts = (allocated[child] != 0) & (rows.kind[child] == EventKind.RANGE)
    return _without(allocated, child[counts], parent[counts])


def _without(amounts: Amounts, child: Rows, parent: Rows) -> Amounts:
    own: Amounts = amounts.copy()
    np.subtract.at(own, parent, amounts[child])
    return own
