"""Arrows from forward operators to backward nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.forward_links import Links
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING


class Arrows(NamedTuple):
    """The thread and start of the forward and of the backward slice of each arrow."""

    from_tid: NDArray[np.uint64]
    from_ns: NDArray[np.int64]
    to_tid: NDArray[np.uint64]
    to_ns: NDArray[np.int64]


def arrows_of(batch: Batch, tids: NDArray[np.uint64], links: Links) -> Arrows:
    """The arrows of a batch's links, without those that end in ranges that are no slices.

    ``tids`` are those of the batch's tracks.
    """
    rows = links.row
    is_slice = ((batch.flags[rows] & OVERLAPPING) == 0) & (
        batch.thread[rows] == batch.end_thread[rows]
    )
    rows = rows[is_slice]
    return Arrows(
        from_tid=links.number[is_slice],
        from_ns=links.start_ns[is_slice],
        to_tid=np.take(tids, batch.thread[rows]),
        to_ns=batch.start_ns[rows],
    )
