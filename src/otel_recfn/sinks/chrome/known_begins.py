"""When ranges began, by event id: what a batch's rows say, and what was announced of ranges that are still open."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS

MOST_OPEN = 4096
"""So many open ranges are known, those that began last."""
Ids = NDArray[np.uint64]
Times = NDArray[np.int64]


class KnownBegins:
    """Never changes.

    Args:
        ids, times: of each begin, in any order.
    """

    def __init__(self, ids: Ids | None = None, times: Times | None = None) -> None:
        self._ids = np.zeros(0, np.uint64) if ids is None else ids
        self._times = np.zeros(0, np.int64) if times is None else times

    def of(self, event_id: int) -> int | None:
        """When that range began, in Unix nanoseconds; None where it isn't known."""
        ids, times = self._in_order
        place = int(np.searchsorted(ids, np.uint64(event_id)))
        return int(times[place]) if place < len(ids) and int(ids[place]) == event_id else None

    def last_before(self, event_id: int) -> tuple[int, int] | None:
        """The latest known range of the same thread that began before that one: its event id, and when it began."""
        ids, times = self._in_order
        place = int(np.searchsorted(ids, np.uint64(event_id))) - 1
        if place < 0 or (int(ids[place]) ^ event_id) >> ORDINAL_BITS:
            return None
        return int(ids[place]), int(times[place])

    def with_batch(self, batch: Batch) -> KnownBegins:
        """Also what a batch's rows say, and what it announces."""
        announced = self._with(batch.opened.columns["event_id"], batch.opened.columns["start_ns"])
        return announced._with(batch.event_id, batch.start_ns)

    def still_open(self, batch: Batch) -> KnownBegins:
        """What is known of ranges that are open after a batch."""
        announced = self._with(batch.opened.columns["event_id"], batch.opened.columns["start_ns"])
        places = np.flatnonzero(~is_in(announced._ids, batch.event_id))[-MOST_OPEN:]
        return KnownBegins(announced._ids[places], announced._times[places])

    @cached_property
    def _in_order(self) -> tuple[Ids, Times]:
        order = np.argsort(self._ids, kind="stable")
        return self._ids[order], self._times[order]

    def _with(self, ids: Ids, times: Times) -> KnownBegins:
        return KnownBegins(np.concatenate((self._ids, ids)), np.concatenate((self._times, times)))
