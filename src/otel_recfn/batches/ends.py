"""Rows in the order of their ends, where parents stand before children that ran on other threads; and rows without an end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.rows import rows_cross
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag

_PARTIAL, _SHOWN = int(EventFlag.PARTIAL), np.uint32(EventFlag.SHOWN)


def order_of_ends(batch: Batch) -> NDArray[np.int64] | None:
    """The batch's rows in an order in which each comes after those that ended before it; None: as they stand.

    A drain reads one thread after the other. So a range may stand before one of another thread that lies in it.
    """
    if batch.closed < len(batch) or not rows_cross(batch):
        return None
    return np.argsort(batch.end_ns, kind="stable").astype(np.int64, copy=False)


def cut_off_as_shown(batch: Batch) -> Batch:
    """The batch, where ranges that were open when recording ended count as shown: only an end says whether they were."""
    if not int(np.bitwise_or.reduce(batch.flags)) & _PARTIAL:  # one look at the column: numpy lets go of the GIL in each
        return batch
    is_partial = (batch.flags & np.uint32(_PARTIAL)) != 0
    return replace(batch, flags=batch.flags | np.where(is_partial, _SHOWN, np.uint32(0)))
