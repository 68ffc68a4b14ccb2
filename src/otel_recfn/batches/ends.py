"""Rows in the order of their ends, where parents stand before children that ran on other threads; and rows without an end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_MASK, EventFlag

_ORDINALS = np.uint64(ORDINAL_MASK)
_PARTIAL, _SHOWN = np.uint32(EventFlag.PARTIAL), np.uint32(EventFlag.SHOWN)


def order_of_ends(batch: Batch) -> NDArray[np.int64] | None:
    """The batch's rows in an order in which each comes after those that ended before it; None: as they stand.

    A drain reads one thread after the other. So a range may stand before one of another thread that lies in it.
    """
    ends = batch.end_ns
    if (ends[1:] >= ends[:-1]).all():  # as those of one thread do: cheaper to see than whether rows lie in another thread's
        return None
    crosses = (batch.parent ^ batch.event_id > _ORDINALS) & (batch.parent != 0)
    if not crosses.any() or batch.closed < len(batch):
        return None
    return np.argsort(ends, kind="stable").astype(np.int64, copy=False)


def cut_off_as_shown(batch: Batch) -> Batch:
    """The batch, where ranges that were open when recording ended count as shown: only an end says whether they were."""
    is_partial = (batch.flags & _PARTIAL) != 0
    if not is_partial.any():
        return batch
    return replace(batch, flags=batch.flags | np.where(is_partial, _SHOWN, np.uint32(0)))
