"""Ranges put together by name: what averages show, and what metrics are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventKind

Amounts = NDArray[np.int64]
Rows = NDArray[np.int64]


class ByName:
    """The ranges of a batch, a group for each name, in the order in which the names first began.

    Args:
        batch: the batch.
        with_shapes: a group for each name with the same input shapes.

    Attributes:
        first: of each group, the row that began first.
        counts: how many ranges each group has.
    """

    def __init__(self, batch: Batch, *, with_shapes: bool = False) -> None:
        ranges = np.flatnonzero(batch.kind == EventKind.RANGE)
        ranges = ranges[np.argsort(batch.start_ns[ranges], kind="stable")]
        keys = batch.name[ranges].astype(np.uint64)
        if with_shapes:
            keys = keys << np.uint64(32) | batch.shapes[ranges]
        by_key = np.argsort(keys, kind="stable")
        ordered = keys[by_key]
        self._rows = ranges[by_key]
        self._begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        self._in_order = np.argsort(by_key[self._begins])
        self.first: Rows = self._rows[self._begins][self._in_order]
        self.counts: Amounts = np.diff(np.append(self._begins, len(ordered)))[self._in_order]

    def sums(self, amounts: Amounts) -> Amounts:
        """The sum of each group.

        Args:
            amounts: one for each row of the batch.
        """
        if not len(self._rows):
            return np.zeros(0, np.int64)
        summed: Amounts = np.add.reduceat(amounts[self._rows], self._begins)[self._in_order]
        return summed
