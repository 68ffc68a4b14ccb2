"""The order of begins and ends in a thread.

Begins are ordered by the ordinals of their event ids, and ends by their rows. Whether an end or a
begin came first is decided by their times and, if those are equal, by their rows: what began inside
a range has an earlier row.

    x's end comes before y's begin if x began before y, and x.end_ns < y.start_ns, or they are
    equal and x's row is above y's

A range that ended on another thread has its pop in its own thread's list, with the other thread's
id; an open one has none.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import equals
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, RowKind

Rows: TypeAlias = NDArray[np.int64]
"""Positions in a batch."""
KINDS = np.zeros(len(RowKind), np.uint8)
KINDS[RowKind.RANGE] = EventKind.PUSH_RANGE
KINDS[RowKind.MARK] = EventKind.MARK
KINDS[RowKind.MEMORY] = EventKind.MEMORY_ALLOC
"""The legacy profiler's kind for the begin of each kind of row."""


class Moments(NamedTuple):
    """The moments of a thread, in order."""

    rows: Rows
    kinds: NDArray[np.uint8]
    """The legacy profiler's kinds: a push and a pop of a range have one row."""


def thread_moments(batch: Batch, rows: Rows) -> Moments:
    """The begins and ends of the rows of a thread, in order."""
    begins = rows[np.argsort(batch.event_id[rows], kind="stable")]
    is_partial = batch.flags[rows] & np.uint32(EventFlag.PARTIAL) != 0
    ends = rows[equals(batch.kind[rows], RowKind.RANGE) & ~is_partial]
    here = batch.thread[ends] == batch.end_thread[ends]
    kinds = np.take(KINDS, batch.kind[begins])
    indices = _begins_before_ends(batch, begins, ends[here])
    moments = Moments(
        np.insert(begins, indices, ends[here]), np.insert(kinds, indices, EventKind.POP_RANGE)
    )
    return moments if here.all() else _with_ends_elsewhere(batch, moments, ends[~here])


def _with_ends_elsewhere(batch: Batch, here: Moments, ends: Rows) -> Moments:
    """The moments, with ends on other threads added at their times, after what happened in the
    thread at that time.
    """
    rows = np.concatenate((here.rows, ends))
    kinds = np.concatenate((here.kinds, np.full(len(ends), EventKind.POP_RANGE, np.uint8)))
    times = np.where(equals(kinds, EventKind.POP_RANGE), batch.end_ns[rows], batch.start_ns[rows])
    order = np.argsort(times, kind="stable")
    return Moments(rows[order], kinds[order])


def _begins_before_ends(batch: Batch, begins: Rows, ends: Rows) -> Rows:
    """The number of begins before each end: of its own range, and of those that began before it;
    each in their order.
    """
    starts = np.maximum.accumulate(batch.start_ns[begins])  # a clock may go back
    own = np.searchsorted(batch.event_id[begins], batch.event_id[ends]) + 1
    earlier = np.searchsorted(starts, batch.end_ns[ends], "left")
    until_then = np.searchsorted(starts, batch.end_ns[ends], "right")
    # Begins at the very time of the end: the rows decide.
    for tie in np.flatnonzero(earlier < until_then).tolist():
        same = begins[earlier[tie] : until_then[tie]]
        after = np.flatnonzero(
            (same > ends[tie]) & (np.arange(earlier[tie], until_then[tie]) >= own[tie])
        )
        earlier[tie] = earlier[tie] + after[0] if len(after) else until_then[tie]
    found: Rows = np.maximum.accumulate(np.maximum(earlier, own)) if len(ends) else earlier
    return found
