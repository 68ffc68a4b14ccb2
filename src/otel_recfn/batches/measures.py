"""What each range of a batch took: its time, its waiting and its memory, with and without the
ranges in it.

    parent  ──[ aten::linear                    ]──    total 9
    child   ────[ aten::t ]──[ aten::addmm ]──────     self  9 - 2 - 4 = 3

Without the ranges in it means: without its direct children, as theirs are in these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import equals
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, OVERLAPPING, RowKind

Amounts = NDArray[np.int64]
Rows = NDArray[np.int64]
CPU_MEMORY = ("", "cpu", "mkldnn", "ideep")
"""The kinds of devices whose memory torch.profiler counts as the CPU's; empty: none was
reported.
"""


class Nesting(NamedTuple):
    """Pairs of a range and its parent, as columns of equal length."""

    child: Rows
    """The rows whose parent is in the batch too."""
    parent: Rows
    """The rows of their parents."""


def find_nesting(rows: Batch) -> Nesting:
    """The pairs of the batch, worked out once for the functions below."""
    child = np.flatnonzero(rows.parent != 0)
    if not len(child):
        return Nesting(child, child)
    order = np.argsort(rows.event_id)
    position: Rows = order[
        np.minimum(np.searchsorted(rows.event_id, rows.parent[child], sorter=order), len(order) - 1)
    ]
    found = rows.event_id[position] == rows.parent[child]
    return Nesting(child[found], position[found])


def self_times(rows: Batch, nested: Nesting) -> Amounts:
    """The nanoseconds that each range took without its direct children; 0 for asynchronous ranges,
    marks and memory.

    A child counts if it ran within its parent on the same thread; asynchronous ranges and other
    threads' don't. Source: ``FunctionEvent.self_cpu_time_total`` of torch.autograd.profiler_util.
    """
    spent: Amounts = np.where(_is_synchronous(rows), rows.end_ns - rows.start_ns, 0)
    return _without_children(spent, direct_children(rows, nested))


def direct_children(rows: Batch, nested: Nesting) -> Nesting:
    """The children that ran on their parent's thread, one after the other, and ended before it."""
    child, parent = nested
    is_synchronous = _is_synchronous(rows)
    thread = rows.event_id >> np.uint64(ORDINAL_BITS)
    inside = (
        is_synchronous[child]
        & is_synchronous[parent]
        & (thread[child] == thread[parent])
        & (child < parent)
    )
    return Nesting(child[inside], parent[inside])


def _is_synchronous(rows: Batch) -> NDArray[np.bool_]:
    return np.asarray(equals(rows.kind, RowKind.RANGE) & (rows.flags & OVERLAPPING == 0))


def _without_children(amounts: Amounts, nested: Nesting) -> Amounts:
    """Each row's amount less those of its children."""
    own: Amounts = amounts.copy()
    np.subtract.at(own, nested.parent, amounts[nested.child])
    return own


def wait_times(rows: Batch) -> Amounts:
    """The nanoseconds in each range in which its thread didn't work; 0 if its CPU time isn't
    known.
    """
    waited: Amounts = np.maximum(rows.end_ns - rows.start_ns - rows.cpu_time_ns, 0)
    return np.where(rows.cpu_time_ns >= 0, waited, 0)


def allocated_bytes(rows: Batch, nested: Nesting, *, on_device: bool = False) -> Amounts:
    """Bytes per row that were allocated within it and its descendants, less those that were freed:
    those of the CPU or, with ``on_device``, of all other devices.
    """
    reports = np.flatnonzero(equals(rows.kind, RowKind.MEMORY))
    devices, device = np.unique(rows.device[reports], return_inverse=True)
    is_cpu = np.array(
        [rows.names[index].partition(":")[0] in CPU_MEMORY for index in devices.tolist()],
        np.bool_,
    )
    reports = reports[is_cpu[device] != on_device]
    total: Amounts = np.zeros(len(rows), np.int64)
    total[reports] = rows.nbytes[reports]
    parent_rows = np.full(len(rows), -1, np.int64)
    parent_rows[nested.child] = nested.parent
    # All reports go up one level at a time, until the last one is at the top.
    amounts = total[reports]
    reached = parent_rows[reports]
    while len(reached):
        inside = reached >= 0
        amounts = amounts[inside]
        reached = reached[inside]
        np.add.at(total, reached, amounts)
        reached = parent_rows[reached]
    return total


def own_bytes(rows: Batch, nested: Nesting, allocated: Amounts) -> Amounts:
    """Bytes per row that were ``allocated`` within it, but not within the ranges in it."""
    child, parent = nested
    counts = (allocated[child] != 0) & equals(rows.kind[child], RowKind.RANGE)
    return _without_children(allocated, Nesting(child[counts], parent[counts]))
