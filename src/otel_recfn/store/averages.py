"""Ranges summed up by name, as ``torch.profiler``'s ``key_averages`` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.self_times import ByName, allocated_bytes, nesting, self_bytes, self_times
from otel_recfn.model.batch import Batch
from otel_recfn.store.text_table import Column, render, share_text, time_text


@dataclass(frozen=True)
class KeyAverage:
    """Every range of one name (and, if asked for, of the same input shapes).

    Attributes:
        key: the name.
        input_shapes: JSON text of the shapes; empty when not grouped by them.
        count: how many ranges.
        cpu_time_total: microseconds from begin to end, summed.
        self_cpu_time_total: the same without direct children.
        cpu_memory_usage: bytes allocated less bytes freed within the ranges.
        self_cpu_memory_usage: the same without direct children.
        flops: floating point operations.
    """

    key: str
    input_shapes: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_memory_usage: int
    self_cpu_memory_usage: int
    flops: int

    @property
    def cpu_time(self) -> float:
        """Microseconds of one range, on average."""
        return self.cpu_time_total / self.count


class KeyAverages(Sequence[KeyAverage]):
    """What ``profile.key_averages()`` gives: a sequence in the order in which the names first began."""

    def __init__(self, averages: Sequence[KeyAverage], lost: Mapping[str, int] | None = None) -> None:
        self._averages, self._lost = list(averages), lost or {}

    def with_losses(self, lost: Mapping[str, int]) -> KeyAverages:
        """The same, and a last line of the table says what is not in them."""
        return KeyAverages(self._averages, lost)

    @overload
    def __getitem__(self, index: int) -> KeyAverage: ...
    @overload
    def __getitem__(self, index: slice) -> KeyAverages: ...
    def __getitem__(self, index: int | slice) -> KeyAverage | KeyAverages:
        return KeyAverages(self._averages[index], self._lost) if isinstance(index, slice) else self._averages[index]

    def __len__(self) -> int:
        return len(self._averages)

    def __iter__(self) -> Iterator[KeyAverage]:
        return iter(self._averages)

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all ranges together, each without its children, so that no time counts twice."""
        return sum(average.self_cpu_time_total for average in self._averages)

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The averages as text.

        Args:
            sort_by: an attribute of KeyAverage, largest first (``key``: alphabetically); None leaves the order.
            row_limit: rows shown; -1 for all.

        Raises:
            SettingError: there is no such column.
        """
        table = render(self._averages, _columns(self._averages, self.self_cpu_time_total), sort_by, row_limit)
        return table + _told(self._lost)

    def __repr__(self) -> str:
        return f"KeyAverages({self._averages!r})"


def _told(lost: Mapping[str, int]) -> str:
    """What is not in them, as a line."""
    counts = ", ".join([f"{name}={count}" for name, count in lost.items()])
    return f"Lost, and not in these sums: {counts}\n" if counts else ""


def key_averages(rows: Batch, *, group_by_input_shape: bool = False) -> KeyAverages:
    """The ranges of a batch by name.

    Source: ``EventList.key_averages`` of torch.autograd.profiler_util.
    """
    groups = ByName(rows, with_shapes=group_by_input_shape)
    columns = [sums.tolist() for sums in (groups.counts, *map(groups.sums, _measures(rows)))]
    firsts = groups.first.tolist()
    return KeyAverages(
        [_average(rows, first, sums, group_by_input_shape) for first, *sums in zip(firsts, *columns, strict=True)]
    )


def _measures(rows: Batch) -> tuple[NDArray[np.int64], ...]:
    nested = nesting(rows)
    memory = allocated_bytes(rows, nested)
    return rows.end_ns - rows.start_ns, self_times(rows, nested), memory, self_bytes(rows, memory, nested), rows.flops


def _average(rows: Batch, first: int, sums: list[int], with_shapes: bool) -> KeyAverage:
    count, total, own, memory, own_memory, flops = sums
    shapes = rows.names[rows.shapes[first]] if with_shapes else ""
    return KeyAverage(rows.names[rows.name[first]], shapes, count, total / 1000, own / 1000, memory, own_memory, flops)


def _columns(averages: Sequence[KeyAverage], whole: float) -> list[Column[KeyAverage]]:
    columns: list[Column[KeyAverage]] = [
        Column("Name", "key", lambda one: one.key),
        Column("Self CPU %", "self_cpu_time_total", lambda one: share_text(one.self_cpu_time_total, whole)),
        Column("Self CPU", "self_cpu_time_total", lambda one: time_text(one.self_cpu_time_total)),
        Column("CPU total", "cpu_time_total", lambda one: time_text(one.cpu_time_total)),
        Column("CPU time avg", "cpu_time", lambda one: time_text(one.cpu_time)),
        Column("# of Calls", "count", lambda one: str(one.count)),
    ]
    if any(one.cpu_memory_usage for one in averages):
        columns.append(Column("Memory", "cpu_memory_usage", lambda one: _memory(one.cpu_memory_usage)))
        columns.append(Column("Self Memory", "self_cpu_memory_usage", lambda one: _memory(one.self_cpu_memory_usage)))
    if any(one.flops for one in averages):
        columns.append(Column("FLOPs", "flops", lambda one: f"{one.flops:,}"))
    if any(one.input_shapes for one in averages):
        columns.append(Column("Input Shapes", "input_shapes", lambda one: one.input_shapes))
    return columns


def _memory(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} B"
