"""From a backward range to its forward range: what is told, and by whom.

Autograd gives each graph node a sequence number that counts up in the thread that makes it, and the operators running at that
moment carry the number too. The node's backward range carries it again, with the logical id of the thread of the forward.
Several forward ranges can share a number (``aten::linear`` and the ``aten::t`` inside it; an operator that makes no node and
the next one that does): the one that started last made the node, because making it moves the number on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch, SpanContextRef, Track

MAX_FORWARD_RANGES = 1_000_000
"""How many forward ranges wait for a backward: 56 to 72 bytes each, many steps of a large model."""
MAX_MATCHED_RANGES = 1 << 16
"""How many are remembered that have a backward: for another one through the same graph, which few programs have."""


class Links(NamedTuple):
    """Backward rows of a batch with their forward ranges, as columns of equal length in row order."""

    row: NDArray[np.int64]
    """Index of the backward row in the batch."""
    event_id: NDArray[np.uint64]
    root: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    """Index into ``tracks``."""
    context: NDArray[np.uint32]
    """Index into ``contexts``."""
    tracks: Sequence[Track]
    contexts: Sequence[SpanContextRef]


class FindsLinks(Protocol):
    """Of a sink's own, or shared."""

    def match(self, batch: Batch) -> Links:
        """Remember the batch's forward ranges, then find those of its backward rows."""


MakesLinks = Callable[[], FindsLinks]
