"""The forward ranges of backward ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.model.batch import Batch


class Links(NamedTuple):
    """The backward rows of a batch with their forward ranges, as columns of equal length in row
    order.
    """

    row: NDArray[np.int64]
    """The row of the backward range."""
    event_id: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    number: NDArray[np.uint64]
    """The number of the forward range's track."""


def find_links(ranges: _native.ForwardRanges, batch: Batch, numbers: NDArray[np.uint64]) -> Links:
    """Remember the batch's forward ranges, then find those of its backward rows, across batches;
    once per batch.

    Autograd gives each graph node a sequence number that counts up in the thread that makes it, and
    the operators running at that moment carry the number too. The node's backward range carries it
    again, with the logical id of the thread of the forward. Several forward ranges can share a
    number (``aten::linear`` and the ``aten::t`` inside it; an operator that makes no node and the
    next one that does): the one that started last made the node, because making it moves the number
    on.

    ``ranges`` are those of earlier batches, ``numbers`` one for each of the batch's tracks, for the
    links to their ranges.
    """
    thread_ids = np.array([track.thread_id for track in batch.tracks], np.uint64)
    found: Any = ranges.link(batch, thread_ids, numbers)
    return Links(
        row=np.frombuffer(found.row, np.int64),
        event_id=np.frombuffer(found.event_id, np.uint64),
        start_ns=np.frombuffer(found.start_ns, np.int64),
        number=np.frombuffer(found.number, np.uint64),
    )
