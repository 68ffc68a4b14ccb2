"""In which order the begins and ends of a thread came to pass, for all of them at once.

An end stands before the first begin that came after it, and after the ends that stand before it in their rows' order.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch

Rows: TypeAlias = NDArray[np.int64]
"""Positions in a batch."""


def places(batch: Batch, begins: Rows, ends: Rows, before: Rows) -> tuple[Rows, Rows]:
    """Where each begin, and each end, stands among them all; ``before`` is what ``ends_in_order`` gave."""
    place_of_ends = before + np.arange(len(ends))
    ends_until = np.searchsorted(before, np.arange(len(begins)), "right")
    return np.arange(len(begins)) + ends_until, place_of_ends


def ends_in_order(batch: Batch, begins: Rows, ends: Rows) -> Rows:
    """For each end, in the order of its rows, before which begin it stands, as a position in ``begins``; their number: none.

    Args:
        batch: has both.
        begins: rows in the order in which they began.
        ends: rows in the order in which they ended.
    """
    starts = batch.start_ns[begins]
    if np.any(starts[1:] < starts[:-1]):  # a clock that went back
        return _one_by_one(batch, begins, ends)
    own = np.searchsorted(batch.event_id[begins], batch.event_id[ends]) + 1
    first = np.searchsorted(starts, batch.end_ns[ends], "left")
    later = np.searchsorted(starts, batch.end_ns[ends], "right")
    for tie in np.flatnonzero(first < later).tolist():  # begins at the very time of the end: the rows decide
        same = begins[first[tie] : later[tie]]
        after = np.flatnonzero((same > ends[tie]) & (np.arange(first[tie], later[tie]) >= own[tie]))
        first[tie] = first[tie] + after[0] if len(after) else later[tie]
    found: Rows = np.maximum.accumulate(np.maximum(first, own)) if len(ends) else first
    return found


def _one_by_one(batch: Batch, begins: Rows, ends: Rows) -> Rows:
    columns = (batch.event_id[begins], batch.start_ns[begins], begins)
    coming = list(zip(*(column.tolist() for column in columns), strict=True))
    found, at = [], 0
    for end in ends.tolist():
        event_id, moment = int(batch.event_id[end]), (int(batch.end_ns[end]), end)
        while at < len(coming) and not (event_id < coming[at][0] and moment < coming[at][1:]):
            at += 1
        found.append(at)
    return np.array(found, np.int64)
