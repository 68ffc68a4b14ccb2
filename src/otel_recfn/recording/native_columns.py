"""What the native drain gives, as numpy sees it: columns without a copy, announced ranges as columns until they're read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Opened
from otel_recfn.model.columns import ANNOUNCED_COLUMNS, COLUMN_TYPES, COLUMNS, Column

OPENED_TYPES = {name: COLUMN_TYPES[name] for name in ANNOUNCED_COLUMNS}


def columns(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An array per column of a Batch, over the memory that the drain filled; it leaves out what is seldom filled and wasn't."""
    count = memoryview(raw["kind"]).nbytes
    return {
        column.name: np.frombuffer(raw[column.name], dtype=column.dtype) if column.name in raw else _empty(column, count)
        for column in COLUMNS
    }


def _empty(column: Column, count: int) -> NDArray[Any]:
    """As ``np.full``, but memory that is zero costs nothing until it is written."""
    return np.full(count, column.empty, column.dtype) if column.empty else np.zeros(count, column.dtype)


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
