"""Ids of traced Python calls as torch.profiler gives them: from 1 on, over all threads in the order in which calls began.

That order is known when all calls are. In a trace that is written while the program runs, calls keep the ids of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.selection import traced_calls
from otel_recfn.model.batch import Batch


class PythonIds:
    """Of the calls in the batches, in which each row's event id stands once."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        found = [(batch.event_id[rows], batch.start_ns[rows]) for batch in batches for rows in [traced_calls(batch)]]
        event_ids = np.concatenate([np.empty(0, dtype=np.uint64), *[ids for ids, _ in found]])
        starts = np.concatenate([np.empty(0, dtype=np.int64), *[times for _, times in found]])
        numbers = np.empty(len(event_ids), dtype=np.uint64)
        numbers[np.lexsort((event_ids, starts))] = np.arange(1, len(event_ids) + 1, dtype=np.uint64)
        order = np.argsort(event_ids, kind="stable")
        self._event_ids, self._numbers = event_ids[order], numbers[order]

    def of(self, event_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Of the calls with these event ids; 0 where there is none."""
        if not len(self._event_ids):
            return np.zeros(len(event_ids), dtype=np.uint64)
        places = np.minimum(np.searchsorted(self._event_ids, event_ids), len(self._event_ids) - 1)
        return np.where(self._event_ids[places] == event_ids, self._numbers[places], np.uint64(0))
