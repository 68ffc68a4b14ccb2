"""What a batch announces, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from numpy.typing import NDArray

from otel_recfn.model.batch import Opened


class OpenedColumns(Sequence[Opened]):
    """``Batch.opened``. A program without module calls announces every operator: tuples would cost more than the drain.

    Args:
        columns: those of an Opened, in its order; ``name`` is an index.
        names: what ``name`` indexes.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> None:
        self.columns, self._names = columns, names

    def part(self, places: NDArray[Any]) -> OpenedColumns:
        """Those at these places."""
        return OpenedColumns({name: column[places] for name, column in self.columns.items()}, self._names)

    def __len__(self) -> int:
        return len(self.columns["event_id"])

    @overload
    def __getitem__(self, index: int) -> Opened: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Opened]: ...
    def __getitem__(self, index: int | slice) -> Opened | Sequence[Opened]:
        if isinstance(index, slice):
            return list(self)[index]
        event_id, name, *rest = (column[index].item() for column in self.columns.values())
        return Opened(event_id, self._names[name], *rest)

    def __iter__(self) -> Iterator[Opened]:
        for event_id, name, *rest in zip(*(column.tolist() for column in self.columns.values()), strict=True):
            yield Opened(event_id, self._names[name], *rest)
