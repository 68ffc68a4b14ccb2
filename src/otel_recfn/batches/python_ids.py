"""The ids of traced Python calls in a trace, as torch.profiler gives them.

They are 1, 2, 3, ... in the order of begins over all threads. A row comes when its call has ended.
Which calls began before is known all the same: with each batch come those that ended and, in
``Batch.open_calls``, those that are open, so all that began up to its drain, and later batches have
what began later.

    thread 1    [main                 │    main is 1: it is open, and its id is remembered
    thread 2         [load]  [sum]    │    load is 2, sum is 3
                                    drain

So a file that is written while the program runs has the ids that it would have if it were written
afterwards, but for begins of which the drain hears late. These are of calls that were open when
tracing began, in a thread that was blocked until later, and of a call that a thread was just
writing as the drain read. They get the next ids then. Calls that were lost have ids, too, where
they were seen open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct
from otel_recfn.batches.selection import traced_calls
from otel_recfn.model.batch import Batch

Ids = NDArray[np.uint64]
Times = NDArray[np.int64]


class CallIds(NamedTuple):
    """The ids of the rows of a batch, 0 for those that are no traced calls."""

    own: Ids
    caller: Ids
    """The id of the innermost call around; 0 where there is none in the trace."""


class PythonIds:
    """The ids of the traced calls of a trace, by event id."""

    def __init__(self) -> None:
        self._event_ids: Ids = np.zeros(0, np.uint64)
        """Theirs, ascending."""
        self._ids: Ids = np.zeros(0, np.uint64)
        self._last = 0

    def add(self, batches: Sequence[Batch]) -> None:
        """Number the calls that are rows of these batches, which are all batches of a trace."""
        self._number([_calls(batch) for batch in batches])

    def _number(self, begins: Sequence[tuple[Ids, Times]]) -> None:
        """Number those of the calls, by event id and time, that have no id yet."""
        event_ids = np.concatenate([np.zeros(0, np.uint64), *[ids for ids, _ in begins]])
        starts = np.concatenate([np.zeros(0, np.int64), *[times for _, times in begins]])
        are_new = self._ids_for(event_ids) == 0
        event_ids = event_ids[are_new]
        starts = starts[are_new]
        if not len(event_ids):
            return
        by_event_id = np.argsort(event_ids, kind="stable")
        event_ids = event_ids[by_event_id]
        starts = starts[by_event_id]
        ids = np.empty(len(event_ids), np.uint64)
        # Each thread's begins ascend in both: so a stable sort by time merges them, and leaves a
        # thread's order to what began at the same time.
        numbers = np.arange(1, len(ids) + 1, dtype=np.uint64) + np.uint64(self._last)
        ids[np.argsort(starts, kind="stable")] = numbers
        self._last += len(ids)
        all_event_ids = np.concatenate((self._event_ids, event_ids))
        order = np.argsort(all_event_ids, kind="stable")
        self._event_ids = all_event_ids[order]
        self._ids = np.concatenate((self._ids, ids))[order]

    def call_ids(self, batch: Batch) -> CallIds | None:
        """The ids of a batch's rows; None where no call is known."""
        if not len(self._event_ids):
            return None
        return CallIds(self._ids_for(batch.event_id), self._ids_for(batch.caller))

    def follow(self, batch: Batch) -> CallIds | None:
        """Add the calls of the next batch, and forget those that no later row can name.

        Returns:
            The ids of its rows, as ``call_ids``.
        """
        still_open = batch.open_calls
        begins = [_calls(batch)]
        if still_open is not None:
            begins.append((still_open.event_id, still_open.start_ns))
        self._number(begins)
        ids = self.call_ids(batch)
        if ids is not None and still_open is not None:
            named = np.concatenate((still_open.event_id, still_open.caller))
            indices = self._indices(named)
            rows = distinct(indices[self._event_ids[indices] == named])
            self._event_ids = self._event_ids[rows]
            self._ids = self._ids[rows]
        return ids

    def _ids_for(self, event_ids: Ids) -> Ids:
        """The ids of the calls with these event ids; 0 where there is none."""
        if not len(self._event_ids):
            return np.zeros(len(event_ids), np.uint64)
        indices = self._indices(event_ids)
        return np.where(self._event_ids[indices] == event_ids, self._ids[indices], np.uint64(0))

    def _indices(self, event_ids: Ids) -> NDArray[np.intp]:
        return np.minimum(np.searchsorted(self._event_ids, event_ids), len(self._event_ids) - 1)


def _calls(batch: Batch) -> tuple[Ids, Times]:
    """The event ids and times of the calls that are rows of a batch."""
    rows = np.flatnonzero(traced_calls(batch))
    return batch.event_id[rows], batch.start_ns[rows]
