"""Several batches as one: their rows in order, their tables joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.distinct import Distinct
from otel_recfn.model.batch import COLUMN_TYPES, NO_CONTEXT, TEXT_COLUMNS, Batch, SpanContextRef, ThreadInfo
from otel_recfn.model.columns import CONTEXT_COLUMNS, THREAD_COLUMNS


def merged(batches: Sequence[Batch]) -> Batch:
    """One batch of all rows. Of a thread that is in several batches the last one's name is taken."""
    names: Distinct[str] = Distinct([""])
    contexts: Distinct[SpanContextRef] = Distinct([NO_CONTEXT])
    threads = _Threads()
    parts = [_translated(batch, names, contexts, threads) for batch in batches]
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, dtype)
        for name, dtype in COLUMN_TYPES.items()
    }
    return Batch(**columns, names=names.values, threads=threads.infos, contexts=contexts.values)


def _translated(
    batch: Batch, names: Distinct[str], contexts: Distinct[SpanContextRef], threads: _Threads
) -> dict[str, NDArray[Any]]:
    columns = {name: getattr(batch, name) for name in COLUMN_TYPES}
    for column in TEXT_COLUMNS:
        columns[column] = names.indices(batch.names, columns[column])
    for column in CONTEXT_COLUMNS:
        columns[column] = contexts.indices(batch.contexts, columns[column])
    by_index = threads.indices(batch.threads)
    for column in THREAD_COLUMNS:
        columns[column] = by_index[columns[column]]
    return columns


class _Threads:
    """Threads by their number; a later batch may know a thread's name that an earlier one didn't."""

    def __init__(self) -> None:
        self.infos: list[ThreadInfo] = []
        self._index: dict[int, int] = {}

    def indices(self, threads: Sequence[ThreadInfo]) -> NDArray[np.uint32]:
        """Where each of these threads stands in ``infos``."""
        return np.array([self._index_of(thread) for thread in threads], np.uint32)

    def _index_of(self, thread: ThreadInfo) -> int:
        index = self._index.setdefault(thread.number, len(self.infos))
        if index == len(self.infos):
            self.infos.append(thread)
        elif thread.name or not self.infos[index].name:
            self.infos[index] = thread
        return index
