"""Sealed columns, which a drain hands to every sink.

A batch never changes once it is made, but for one thing: ``names`` may be a list that later batches
share, which grows at its end (copying some 65,536 names would cost more than the drain). What the
rows of a batch index stays where it is. Batches also share the memory of empty columns, which is
read-only: ``torch.from_numpy`` only warns of that, so copy what is to be written.

Rows stand in the order in which the drain closed them: a child before its parent, and per thread in
the order of their ends. ``opened`` announces outermost ranges that began, in order, so that a sink
can decide on a trace before their children come. ``steps`` are no rows: a training step is known
when its optimizer has stepped, and its ranges had begun and ended before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.columns import (
    COLUMN_TYPES,
    COLUMNS,
    NO_CONTEXT,
    OPENED_COLUMNS,
    Column,
    ColumnArrays,
    ColumnValues,
    SpanContextRef,
    Track,
)
from otel_recfn.model.events import OTHER_PROCESSES

__all__ = [
    "COLUMN_TYPES",
    "NO_CONTEXT",
    "Batch",
    "Event",
    "Opened",
    "OpenedColumns",
    "ProgramSpan",
    "Sample",
    "SpanContextRef",
    "Track",
    "TrainingStep",
]

SHARED_ROWS = 1 << 18
"""The rows up to which batches share empty columns."""


def empty_column(dtype: Any, count: int, empty: int = 0) -> NDArray[Any]:
    """A column of so many empty values, which nobody may write to.

    Args:
        dtype: of the column.
        count: of rows.
        empty: what says so.
    """
    return (
        shared_column(dtype, empty)[:count]
        if count <= SHARED_ROWS
        else _filled(count, dtype, empty)
    )


@cache
def shared_column(dtype: Any, empty: int = 0) -> NDArray[Any]:
    """The ``base`` of shared empty columns.

    Filling one for each batch would cost a tenth of the drain.
    """
    values = _filled(SHARED_ROWS, dtype, empty)
    values.flags.writeable = False
    return values


def _filled(count: int, dtype: type[np.generic], value: int) -> NDArray[Any]:
    """An array like ``np.full``'s, but without a cost for zeros until they are written."""
    return np.full(count, value, dtype) if value else np.zeros(count, dtype)


class Opened(NamedTuple):
    """An outermost range that began, directly in a span or in nothing; its row follows when it
    ends.
    """

    event_id: int
    name: str
    source: int
    start_ns: int
    thread: int
    """Index into ``Batch.tracks``."""
    context: int
    """Index into ``Batch.contexts``."""
    flags: int = 0
    """The EventFlag bits that are known at the begin."""


class OpenedColumns:
    """The columns of ``Batch.opened``.

    Where a program announces every operator, tuples would cost more than the drain.

    Args:
        columns: those of an Opened, in its order; ``name`` is an index.
        names: what ``name`` indexes.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> None:
        self.columns, self.names = columns, names

    def take(self, chosen: NDArray[np.bool_]) -> OpenedColumns:
        """Those of a mask."""
        return OpenedColumns(
            {name: each[chosen] for name, each in self.columns.items()}, self.names
        )

    def __len__(self) -> int:
        return len(self.columns["event_id"])

    def __iter__(self) -> Iterator[Opened]:
        for event_id, name, *rest in zip(
            *(column.tolist() for column in self.columns.values()), strict=True
        ):
            yield Opened(event_id, self.names[name], *rest)


NOTHING_OPENED = OpenedColumns(
    {name: np.zeros(0, COLUMN_TYPES[name]) for name in OPENED_COLUMNS}, ()
)


class Event(ColumnValues):
    """A row, with the columns as attributes and every index resolved."""

    __slots__ = ()

    @property
    def thread_id(self) -> int:
        """RecordFunction's logical id of the thread that began the range."""
        return self.thread.thread_id

    @property
    def duration_ns(self) -> int:
        """The nanoseconds between begin and end."""
        return self.end_ns - self.start_ns


class ProgramSpan(NamedTuple):
    """A span of the program's that has begun or ended. Times are in Unix nanoseconds."""

    trace_id: int
    span_id: int
    parent_id: int
    """The parent's span id; 0 if it has none."""
    name: str
    thread: Track
    """The thread in which it began, without the recorder's numbers of it."""
    start_ns: int
    end_ns: int
    """0 while it is open."""
    nests: bool
    """Whether it nests in the ranges and spans of its thread, which isn't known while it is
    open.
    """


class TrainingStep(NamedTuple):
    """A training step of no ``step``, which is over (``native/drain/training_steps.hpp``).

    Times are in Unix nanoseconds.
    """

    number: int
    """The number in its thread, from 0."""
    first: int
    """The event id of its first outermost range."""
    last: int
    """The event id of the outermost range in which its optimizer stepped last."""
    start_ns: int
    end_ns: int
    thread: int
    """Index into ``Batch.tracks``."""
    context: int
    """Index into ``Batch.contexts``."""
    is_marked: bool = False
    """Whether it lies in a range by which a profiler marks it."""


class Sample(NamedTuple):
    """What a thread ran in Python while it recorded nothing: a function, at one moment."""

    name: str
    """The innermost function of the program, and the library function that it had called."""
    thread: Track
    time_ns: int
    """The moment, in Unix nanoseconds."""
    duration_ns: int
    """The time that it stands for: since the thread was looked at before."""
    parent: int
    """The event id of the thread's innermost open range, which the program runs; 0: none."""
    context: SpanContextRef
    """The span that was current, as far as the thread's ranges have told."""
    last_begun: int = 0
    """The event id of the last range that had begun in the thread."""
    since_ns: int = 0
    """Since when nothing had begun or ended in the thread, in Unix nanoseconds."""
    is_directly_in_span: bool = True
    """Whether no range was open around it but a step."""
    is_in_operator: bool = False
    """Whether the thread waits in an operator, whose time it is."""
    waits_for: str = ""
    """What the thread waits for: another thread, by its name, ``other processes``, or its own
    function; empty if it works, or if it isn't known to wait.
    """
    item: str = ""
    """The index of the item that a DataLoader makes, and the worker: ``9 (worker 0)``; empty if
    none is made, or if the index isn't known.
    """

    @property
    def waits_for_thread(self) -> bool:
        """Whether another thread of the process worked meanwhile."""
        return self.waits_for not in {"", OTHER_PROCESSES, self.name}


class OpenCalls(NamedTuple):
    """The traced Python calls that were open when a batch was drained, as columns."""

    event_id: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    caller: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Batch(ColumnArrays):
    """Columns of equal length (``columns.py`` has their meanings) and the tables that they index.

    The first ``closed`` rows are what happened. What follows, where a drain was asked for it, are
    copies of ranges that are still open: they are partial, end now, and come again as rows when
    they really end.
    """

    names: Sequence[str]
    tracks: Sequence[Track]
    contexts: Sequence[SpanContextRef] = (NO_CONTEXT,)
    opened: OpenedColumns = NOTHING_OPENED
    closed: int = -1
    """The number of rows that are no copies of open ranges; -1 (default) for all rows."""
    clock_jump_ns: int = 0
    """The nanoseconds by which the wall clock was set, if by over a second.

    Later ranges use the new time.
    """
    drained_ns: int = 0
    """The begin of the drain, in Unix nanoseconds: what had ended by then is in this or earlier
    batches.

    0: unknown.
    """
    long_open: Batch | None = None
    """The ranges that have been open for ``open_range_s`` seconds, as partial rows that end now;
    each is a row again when it ends.

    Set every quarter of that time, and once empty when there are no more; else None.
    """
    open_calls: OpenCalls | None = None
    """The traced calls that are open; None where the capture traces none."""
    spans: Sequence[ProgramSpan] = ()
    """The program's spans that have begun or ended since the batch before, in this order, as far
    as a capture shows them.
    """
    steps: Sequence[TrainingStep] = ()
    """The training steps of no ``step`` that are over, each once.

    Their ranges may be in earlier batches.
    """
    unfinished_steps: Sequence[TrainingStep] = ()
    """Beside copies of open ranges: the training steps whose optimizer has stepped, and to which
    more may come, as they would be if nothing did.
    """
    samples: Sequence[Sample] = ()
    """What threads ran in Python meanwhile, where a capture asks for it."""

    def __post_init__(self) -> None:
        if self.closed < 0:
            object.__setattr__(self, "closed", len(self))

    def __len__(self) -> int:
        return len(self.event_id)

    @property
    def is_outermost(self) -> NDArray[np.bool_]:
        """Whether each row lies directly in a span, or in nothing: a span may lie in a range."""
        return np.asarray(self.root == self.event_id)

    @property
    def parent_in_span(self) -> NDArray[np.uint64]:
        """The parent of each row that isn't outermost; else 0."""
        return np.where(self.is_outermost, np.uint64(0), self.parent)

    def is_empty(self, column: Column[Any, Any]) -> bool:
        """Whether a column is empty, and shared with other batches, so that a copy of rows need
        not read it.
        """
        dtype: Any = column.dtype
        return column.is_optional and getattr(self, column.name).base is shared_column(
            dtype, column.empty
        )

    def take(self, rows: NDArray[Any] | slice, **columns: Any) -> Batch:
        """A batch of these rows with the same tables and nothing announced; all of them count as
        closed.

        Args:
            rows: a mask, indices or a slice.
            columns: what to have in place of columns or tables, already of the new length.
        """
        taken = {name: getattr(self, name)[rows] for name in COLUMN_TYPES if name not in columns}
        unknown = {
            "opened": NOTHING_OPENED,
            "long_open": None,
            "open_calls": None,
            "spans": (),
            "steps": (),
            "unfinished_steps": (),
            "samples": (),
        }
        return replace(self, **{**unknown, **taken, **columns}, closed=-1)

    def events(self) -> Iterator[Event]:
        """The rows as events, every index resolved.

        For reading and for tests; sinks read the columns.
        """
        return itertools.starmap(
            Event, zip(*[self._resolved(column) for column in COLUMNS], strict=True)
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """The columns of an Event, row by row."""
        for values in zip(*[self._resolved(column) for column in COLUMNS], strict=True):
            yield dict(zip(COLUMN_TYPES, values, strict=True))

    def _resolved(self, column: Column[Any, Any]) -> list[Any]:
        values: list[Any] = getattr(self, column.name).tolist()
        if column.value is int:
            return values
        tables: dict[object, Sequence[Any]] = {
            str: self.names,
            Track: self.tracks,
            SpanContextRef: self.contexts,
        }
        table = tables.get(column.value)
        meanings = {
            value: column.value(value) if table is None else table[value] for value in {*values}
        }
        return [meanings[value] for value in values]


def drain_columns(
    rows: Mapping[str, Any], opened: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """An array for each column of a Batch, and the announced ranges, over the memory that the drain
    filled.

    Args:
        rows: what is in the columns; one that is seldom filled, and wasn't, is left out.
        opened: what is announced.
        names: what its names index.
    """
    columns = make_columns(rows, memoryview(rows["kind"]).nbytes)
    opened_columns = {
        name: np.frombuffer(opened[name], COLUMN_TYPES[name]) for name in OPENED_COLUMNS
    }
    return columns | {"opened": OpenedColumns(opened_columns, names)}


def make_columns(filled: Mapping[str, Any], count: int) -> dict[str, Any]:
    """An array for each column of a Batch of so many rows; columns whose bytes aren't given are
    empty.
    """
    return {
        column.name: np.frombuffer(filled[column.name], column.dtype)
        if column.name in filled
        else empty_column(column.dtype, count, column.empty)
        for column in COLUMNS
    }


assert Opened._fields == OPENED_COLUMNS
