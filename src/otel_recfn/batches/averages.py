"""Sums of ranges by name, as ``torch.profiler``'s ``key_averages`` has them; self times; and tables of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, OVERLAPPING, RowKind, wait_time_ns

Amounts = NDArray[np.int64]
Rows = NDArray[np.int64]
T = TypeVar("T")
MAX_CELL_CHARS = 80


class Nesting(NamedTuple):
    """Pairs of a range and its parent, as columns of equal length."""

    child: Rows
    """The rows whose parent is in the batch too."""
    parent: Rows
    """The rows of their parents."""


def nesting(rows: Batch) -> Nesting:
    """The pairs of the batch, worked out once for the functions below."""
    child = np.flatnonzero(rows.parent != 0)
    if not len(child):
        return Nesting(child, child)
    order = np.argsort(rows.event_id)
    place: Rows = order[
        np.minimum(np.searchsorted(rows.event_id, rows.parent[child], sorter=order), len(order) - 1)
    ]
    found = rows.event_id[place] == rows.parent[child]
    return Nesting(child[found], place[found])


def self_times(rows: Batch, nested: Nesting) -> Amounts:
    """Nanoseconds that each range spent without its direct children; 0 for asynchronous ranges, marks and memory.

    A child counts if it ran within its parent on the same thread; asynchronous ranges and other threads' don't. Source:
    ``FunctionEvent.self_cpu_time_total`` of torch.autograd.profiler_util.
    """
    spent: Amounts = np.where(_synchronous(rows), rows.end_ns - rows.start_ns, 0)
    return _less_children(spent, *direct_children(rows, nested))


def _synchronous(rows: Batch) -> NDArray[np.bool_]:
    return np.asarray((rows.kind == RowKind.RANGE) & (rows.flags & OVERLAPPING == 0))


def direct_children(rows: Batch, nested: Nesting) -> Nesting:
    """The children that ran on their parent's thread, one after the other, and ended before it."""
    child, parent = nested
    synchronous, thread = _synchronous(rows), rows.event_id >> np.uint64(ORDINAL_BITS)
    inside = (
        synchronous[child]
        & synchronous[parent]
        & (thread[child] == thread[parent])
        & (child < parent)
    )
    return Nesting(child[inside], parent[inside])


def _less_children(amounts: Amounts, child: Rows, parent: Rows) -> Amounts:
    """Each row's amount less those of its children."""
    own: Amounts = amounts.copy()
    np.subtract.at(own, parent, amounts[child])
    return own


def wait_times(rows: Batch) -> Amounts:
    """The nanoseconds in each range that its thread didn't work; 0 if its CPU time isn't known."""
    waited: Amounts = np.maximum(rows.end_ns - rows.start_ns - rows.cpu_time_ns, 0)
    return np.where(rows.cpu_time_ns >= 0, waited, 0)


def allocated_bytes(rows: Batch, nested: Nesting) -> Amounts:
    """Bytes per row that were allocated within it and its descendants, less those that were freed; any device."""
    total: Amounts = np.where(rows.kind == RowKind.MEMORY, rows.nbytes, 0)
    above = np.full(len(rows), -1, np.int64)
    above[nested.child] = nested.parent
    reports = np.flatnonzero(total)
    amounts, reached = total[reports], above[reports]
    while len(reached):
        inside = reached >= 0
        amounts, reached = amounts[inside], reached[inside]
        np.add.at(total, reached, amounts)
        reached = above[reached]
    return total


def own_bytes(rows: Batch, nested: Nesting, allocated: Amounts) -> Amounts:
    """Bytes per row that were ``allocated`` within it, but not within the ranges in it."""
    child, parent = nested
    counts = (allocated[child] != 0) & (rows.kind[child] == RowKind.RANGE)
    return _less_children(allocated, child[counts], parent[counts])


@dataclass(frozen=True)
class KeyAverage:
    """The sums of all ranges of one name (and, if asked for, of the same input shapes and stacks).

    Attributes:
        key: the name.
        input_shapes: JSON text of the shapes; empty when not grouped by them.
        count: how many ranges.
        cpu_time_total: microseconds from begin to end, summed.
        self_cpu_time_total: the same without direct children.
        cpu_memory_usage: bytes allocated less bytes freed within the ranges.
        self_cpu_memory_usage: the same without direct children.
        flops: floating point operations.
        wait_time_total: the microseconds of ``cpu_time_total`` that threads waited, of ranges whose CPU time is known.
        stack: the innermost lines of the stack, as many as it was grouped by.
    """

    key: str
    input_shapes: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_memory_usage: int
    self_cpu_memory_usage: int
    flops: int
    wait_time_total: float
    stack: list[str]

    @property
    def cpu_time(self) -> float:
        """The average time of a range, in microseconds."""
        return self.cpu_time_total / self.count


class KeyAverages(Sequence[KeyAverage]):
    """The result of ``profile.key_averages()``: the names in the order in which they first began.

    A last line of the table says what was lost; a notebook shows ``in_notebook`` in their place, as HTML.
    """

    def __init__(
        self,
        averages: Sequence[KeyAverage],
        lost: Mapping[str, int] | None = None,
        in_notebook: Callable[[], str] | None = None,
    ) -> None:
        self._averages, self._lost, self._in_notebook = list(averages), lost or {}, in_notebook

    def _repr_html_(self) -> str | None:
        return self._in_notebook() if self._in_notebook is not None and self._averages else None

    @overload
    def __getitem__(self, index: int) -> KeyAverage: ...
    @overload
    def __getitem__(self, index: slice) -> KeyAverages: ...
    def __getitem__(self, index: int | slice) -> KeyAverage | KeyAverages:
        if isinstance(index, slice):
            return KeyAverages(self._averages[index], self._lost, self._in_notebook)
        return self._averages[index]

    def __len__(self) -> int:
        return len(self._averages)

    def __iter__(self) -> Iterator[KeyAverage]:
        return iter(self._averages)

    @property
    def self_cpu_time_total(self) -> float:
        """The microseconds of all ranges together, each without its children, so that no time counts twice."""
        return sum(average.self_cpu_time_total for average in self._averages)

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The averages as text.

        Args:
            sort_by: an attribute of KeyAverage, largest first (``key``: alphabetically); None leaves the order.
            row_limit: rows shown; -1 for all.

        Raises:
            SettingError: there is no such column.
        """
        whole = self.self_cpu_time_total
        table = render(self._averages, _columns(self._averages, whole), sort_by, row_limit)
        table += f"Self CPU time total: {time_text(whole)}\n"
        lost = ", ".join([f"{name}={count}" for name, count in self._lost.items()])
        return table + (f"Lost, and not in these sums: {lost}\n" if lost else "")

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"KeyAverages({self._averages!r})"


def key_averages(
    rows: Batch, *, group_by_input_shape: bool = False, group_by_stack_n: int = 0
) -> KeyAverages:
    """The averages of a batch's ranges in the order in which they first began: by name, and by input shapes and the innermost
    lines of stacks if asked for.

    Source: ``EventList.key_averages`` of torch.autograd.profiler_util.
    """
    nested = nesting(rows)
    memory = allocated_bytes(rows, nested)
    own_memory = own_bytes(rows, nested, memory)
    measures = (
        rows.end_ns - rows.start_ns,
        self_times(rows, nested),
        memory,
        own_memory,
        rows.flops,
        wait_times(rows),
    )
    ranges = np.flatnonzero(rows.kind == RowKind.RANGE)
    ranges = ranges[np.argsort(rows.start_ns[ranges], kind="stable")]
    keys = rows.name[ranges].astype(np.uint64)
    if group_by_input_shape:
        keys = keys << np.uint64(32) | rows.shapes[ranges]
    stacks, stack = _innermost_lines(rows, ranges, group_by_stack_n)
    if group_by_stack_n:
        keys = np.unique(keys, return_inverse=True)[1].astype(np.uint64) << np.uint64(32) | stack
    _, first, group, count = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    sums = [np.zeros(len(first), np.int64) for _ in measures]
    for summed, measure in zip(sums, measures, strict=True):
        np.add.at(summed, group, measure[ranges])
    return KeyAverages(
        [
            KeyAverage(
                key=rows.names[rows.name[ranges[first[at]]]],
                input_shapes=rows.names[rows.shapes[ranges[first[at]]]]
                if group_by_input_shape
                else "",
                count=int(count[at]),
                cpu_time_total=int(sums[0][at]) / 1000,
                self_cpu_time_total=int(sums[1][at]) / 1000,
                cpu_memory_usage=int(sums[2][at]),
                self_cpu_memory_usage=int(sums[3][at]),
                flops=int(sums[4][at]),
                wait_time_total=int(sums[5][at]) / 1000,
                stack=stacks[stack[first[at]]].splitlines(),
            )
            for at in np.argsort(first).tolist()
        ]
    )


def _innermost_lines(rows: Batch, ranges: Rows, lines: int) -> tuple[list[str], NDArray[np.uint64]]:
    """The distinct tops of stacks, and the number of the top that each range has."""
    numbers, found = {"": 0}, np.zeros(len(ranges), np.uint64)
    if lines:
        distinct, member = np.unique(rows.stack[ranges], return_inverse=True)
        tops = ["\n".join(rows.names[index].splitlines()[:lines]) for index in distinct.tolist()]
        found = np.array([numbers.setdefault(top, len(numbers)) for top in tops], np.uint64)[member]
    return list(numbers), found


def _columns(averages: Sequence[KeyAverage], whole: float) -> list[TextColumn[KeyAverage]]:
    columns: list[TextColumn[KeyAverage]] = [
        TextColumn("Name", "key", lambda one: one.key),
        TextColumn(
            "Self CPU %",
            "self_cpu_time_total",
            lambda one: share_text(one.self_cpu_time_total, whole),
        ),
        TextColumn(
            "Self CPU", "self_cpu_time_total", lambda one: time_text(one.self_cpu_time_total)
        ),
        TextColumn(
            "CPU total %", "cpu_time_total", lambda one: share_text(one.cpu_time_total, whole)
        ),
        TextColumn("CPU total", "cpu_time_total", lambda one: time_text(one.cpu_time_total)),
        TextColumn("CPU time avg", "cpu_time", lambda one: time_text(one.cpu_time)),
        TextColumn("# of Calls", "count", lambda one: str(one.count)),
    ]
    if any(waits_mostly(one) for one in averages):
        columns.append(TextColumn("Waited", "wait_time_total", wait_text))
    if any(one.cpu_memory_usage for one in averages):
        columns.append(
            TextColumn("Memory", "cpu_memory_usage", lambda one: _memory(one.cpu_memory_usage))
        )
        columns.append(
            TextColumn(
                "Self Memory",
                "self_cpu_memory_usage",
                lambda one: _memory(one.self_cpu_memory_usage),
            )
        )
    if any(one.flops for one in averages):
        columns.append(TextColumn("FLOPs", "flops", lambda one: f"{one.flops:,}"))
    if any(one.input_shapes for one in averages):
        columns.append(TextColumn("Input Shapes", "input_shapes", lambda one: one.input_shapes))
    if any(one.stack for one in averages):
        columns.append(
            TextColumn("Source Location", "stack", lambda one: "\n".join(map(_ending, one.stack)))
        )
    return columns


def waits_mostly(one: Any) -> bool:
    """Whether a column of waiting is of use because of these ranges."""
    return (
        wait_time_ns(
            int(1000 * one.cpu_time_total), int(1000 * (one.cpu_time_total - one.wait_time_total))
        )
        > 0
    )


def wait_text(one: Any) -> str:
    """Nothing if it isn't known."""
    return time_text(one.wait_time_total) if one.wait_time_total else ""


def _memory(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} B"


@dataclass(frozen=True)
class TextColumn(Generic[T]):
    """A column: its title, the attribute that it sorts by, and its text."""

    title: str
    attribute: str
    text: Callable[[T], str]


def render(
    rows: Sequence[T], columns: Sequence[TextColumn[T]], sort_by: str | None, row_limit: int
) -> str:
    """Lines of equal length, the first column flush left, the others right.

    Raises:
        SettingError: no column sorts by ``sort_by``.
    """
    chosen = _sorted(rows, columns, sort_by)
    if row_limit >= 0:
        chosen = chosen[:row_limit]
    cells = [
        [column.title for column in columns],
        *chain.from_iterable([_lines_of(row, columns) for row in chosen]),
    ]
    widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    lines = ["  ".join(_aligned(texts, widths)) for texts in cells]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def _lines_of(row: T, columns: Sequence[TextColumn[T]]) -> list[tuple[str, ...]]:
    """The texts of a row, in several lines if one of them has several."""
    return list(
        zip_longest(
            *[[_cut(line) for line in column.text(row).split("\n")] for column in columns],
            fillvalue="",
        )
    )


def share_text(part: float, whole: float) -> str:
    """A share in percent."""
    return f"{100 * part / whole if whole else 0:.2f}%"


def time_text(microseconds: float) -> str:
    """A time in the unit that fits."""
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:.3f}{name}"
    return f"{microseconds:.3f}us"


def _sorted(rows: Sequence[T], columns: Sequence[TextColumn[T]], sort_by: str | None) -> list[T]:
    if sort_by is None:
        return list(rows)
    allowed = dict.fromkeys(column.attribute for column in columns)
    if sort_by not in allowed:
        raise SettingError(
            f"sort_by={sort_by!r} is not a column here; allowed: {', '.join(allowed)}"
        )
    descending = not rows or not isinstance(getattr(rows[0], sort_by), str)
    return sorted(rows, key=lambda row: getattr(row, sort_by), reverse=descending)


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(texts, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def _ending(text: str) -> str:
    """The end of a long line of a stack, which names the function."""
    return text if len(text) <= MAX_CELL_CHARS else "..." + text[3 - MAX_CELL_CHARS :]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 3] + "..."
