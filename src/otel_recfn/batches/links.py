"""From a backward range to its forward range.

Autograd gives each graph node a sequence number that counts up in the thread that makes it, and the operators running at that
moment carry the number too. The node's backward range carries it again, with the logical id of the thread of the forward.
Several forward ranges can share a number (``aten::linear`` and the ``aten::t`` inside it; an operator that makes no node and
the next one that does): the one that started last made the node, because making it moves the number on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.model.batch import Batch, Track


class Links(NamedTuple):
    """Backward rows of a batch with their forward ranges, as columns of equal length in row order."""

    row: NDArray[np.int64]
    """Index of the backward row in the batch."""
    event_id: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    number: NDArray[np.uint64]
    """What was told of the track of the forward range."""


_KINDS: tuple[Any, ...] = (np.int64, np.uint64, np.int64, np.uint64)


class LinkFinder:
    """Finds the forward range of each backward range, across batches and in bounded memory.

    Args:
        bounds: others than usual: ``most`` ranges are remembered, and ``most_matched`` of those that have a backward; beyond it
            the quarter that started first is forgotten.
    """

    def __init__(self, **bounds: int) -> None:
        self._ranges = _native.ForwardRanges(**bounds)

    def __len__(self) -> int:
        return len(self._ranges)

    def match(self, batch: Batch, numbers: NDArray[np.uint64]) -> Links:
        """Remember the batch's forward ranges, then find those of its backward rows; once per batch.

        Args:
            batch: the batch.
            numbers: one for each of its tracks, to be told with the links to their ranges.
        """
        columns: tuple[Any, ...] = self._ranges.link(batch, thread_ids(batch.tracks), numbers)
        return Links(*[np.frombuffer(column, kind) for column, kind in zip(columns, _KINDS, strict=True)])


def thread_ids(tracks: Sequence[Track]) -> NDArray[np.uint64]:
    """The logical ids of threads, by which backward ranges name them."""
    return np.array([track.thread_id for track in tracks], np.uint64)
