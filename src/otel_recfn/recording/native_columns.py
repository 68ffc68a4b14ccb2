"""What the native drain gives, as numpy sees it: columns without a copy, announced ranges as columns until they're read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from otel_recfn.model.batch import COLUMN_TYPES, Opened

OPENED_TYPES = {
    "event_id": np.uint64,
    "name": np.uint32,
    "source": np.uint32,
    "start_ns": np.int64,
    "thread": np.uint32,
    "context": np.uint32,
}


def columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An array per column of a Batch, over the memory that the drain filled; it leaves out columns that are zero throughout."""
    count = memoryview(raw["kind"]).nbytes
    return {
        name: np.frombuffer(raw[name], dtype=dtype) if name in raw else np.zeros(count, dtype)
        for name, dtype in COLUMN_TYPES.items()
    }


class OpenedColumns(Sequence[Opened]):
    """``Batch.opened``. A program without module calls announces every operator: tuples would cost more than the drain."""

    def __init__(self, raw: Mapping[str, Any], names: Sequence[str]) -> None:
        self._columns = {name: np.frombuffer(raw[name], dtype=dtype) for name, dtype in OPENED_TYPES.items()}
        self._names = names

    def __len__(self) -> int:
        return len(self._columns["event_id"])

    @overload
    def __getitem__(self, index: int) -> Opened: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Opened]: ...
    def __getitem__(self, index: int | slice) -> Opened | Sequence[Opened]:
        if isinstance(index, slice):
            return list(self)[index]
        event_id, name, *rest = (column[index].item() for column in self._columns.values())
        return Opened(event_id, self._names[name], *rest)

    def __iter__(self) -> Iterator[Opened]:
        for event_id, name, *rest in zip(*(column.tolist() for column in self._columns.values()), strict=True):
            yield Opened(event_id, self._names[name], *rest)
