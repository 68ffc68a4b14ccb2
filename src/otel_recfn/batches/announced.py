"""What a batch announces, where that is made of its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch, Opened


class OpenedRows(Sequence[Opened]):
    """``Batch.opened`` in the order of the begins: made when it is read, because few sinks read it.

    Args:
        batch: its columns and tables.
        rows: the top-level ranges that are announced.
    """

    def __init__(self, batch: Batch, rows: NDArray[np.int64]) -> None:
        self._batch, self._rows = batch, rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Opened: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Opened]: ...
    def __getitem__(self, index: int | slice) -> Opened | Sequence[Opened]:
        if isinstance(index, slice):
            return OpenedRows(self._batch, self._rows[index])
        batch, row = self._batch, self._rows[index]
        numbers = (batch.source, batch.start_ns, batch.thread, batch.context)
        return Opened(int(batch.event_id[row]), batch.names[batch.name[row]], *[int(column[row]) for column in numbers])
