"""The rows of the ranges that folding keeps for now, until their unit is finished."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from otel_recfn.batches.fold.finished import Ids
from otel_recfn.batches.merging import merged
from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY

ROWS_TO_SPARE = 1 << 13
"""So many rows may be kept in vain before they are looked through."""
MOST_BATCHES = 32
"""More are put together: each is searched when a unit is finished."""


class KeptRows:
    """Rows of several batches. Those that folding lets go later are dropped now and then.

    Args:
        kept: the event ids of all that is kept at the moment, in ascending order.
    """

    def __init__(self, kept: Callable[[], Ids]) -> None:
        self._kept = kept
        self._batches: list[Batch] = []
        self._rows = self._most = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, batch: Batch) -> None:
        """The rows of a batch that are kept after it was folded."""
        kept = self._kept()
        rows = batch.take(is_in(batch.event_id, kept))
        if len(rows):
            self._rows += len(rows)
            self._batches.append(rows)
        if self._rows > 2 * len(kept) + ROWS_TO_SPARE or len(self._batches) > MOST_BATCHES:
            with suppress(*OUT_OF_MEMORY):  # it only saves memory, and is tried again
                self._compact(kept)

    def take(self, ids: Ids) -> Batch:
        """The rows of these ranges, in this order.

        Raises:
            MemoryError: also where there was none for keeping one of them.
        """
        parts = [batch.take(is_in(batch.event_id, ids)) for batch in self._batches]
        found = merged([part for part in parts if len(part)])
        order = np.argsort(found.event_id)
        place = np.searchsorted(found.event_id[order], ids)
        if not is_in(ids, found.event_id).all():
            raise MemoryError
        return found.take(order[place])

    def _compact(self, kept: Ids) -> None:
        parts = [batch.take(is_in(batch.event_id, kept)) for batch in self._batches]
        parts = [part for part in parts if len(part)]
        self._batches = [merged(parts)] if parts else []
        self._rows = sum([len(part) for part in parts])
