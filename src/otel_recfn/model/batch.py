"""Sealed columns: what one drain hands to every sink.

A batch never changes once it is made. Rows stand in the order in which the drain closed them: a child before its parent, and
per thread in the order of their ends. ``opened`` announces the top-level ranges that began, in their order, before any row
below them is seen, so that a sink can decide on a trace before its children arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.events import EventFlag, EventKind, EventSource
from otel_recfn.model.scope import RecordScope

COLUMN_TYPES: dict[str, type[np.generic]] = {
    "event_id": np.uint64,
    "kind": np.uint8,
    "name": np.uint32,
    "scope": np.uint8,
    "source": np.uint8,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "thread": np.uint32,
    "end_thread": np.uint32,
    "sequence_nr": np.int64,
    "forward_thread_id": np.uint64,
    "handle": np.uint64,
    "parent": np.uint64,
    "root": np.uint64,
    "context": np.uint32,
    "node_id": np.int64,
    "debug_handle": np.int64,
    "flags": np.uint32,
    "shapes": np.uint32,
    "dtypes": np.uint32,
    "module": np.uint32,
    "error": np.uint32,
    "profiler": np.uint32,
    "flops": np.int64,
    "stack": np.uint32,
    "nbytes": np.int64,
    "device": np.uint32,
}
"""Every column and its type. Units: ``*_ns`` are Unix nanoseconds. The columns of TEXT_COLUMNS index ``Batch.names`` (0 is the
empty string: not recorded); ``thread`` and ``end_thread`` index ``Batch.threads``; ``context`` indexes ``Batch.contexts``."""

TEXT_COLUMNS = ("name", "shapes", "dtypes", "module", "error", "stack", "device")


class ThreadInfo(NamedTuple):
    """A thread that recorded something."""

    number: int
    """The recorder's own number, from 1, never reused: the upper bits of the thread's event ids."""
    thread_id: int
    """RecordFunction's logical thread id (PyTorch's where PyTorch is observed, else the recorder's number)."""
    native_id: int
    """The operating system's thread id (``threading.get_native_id()``)."""
    ident: int
    """``threading.get_ident()`` of the thread; 0 where it has none."""
    name: str
    """Python's name of the thread; empty where it has none."""


class SpanContextRef(NamedTuple):
    """The OpenTelemetry span that was current; all zero where none was."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits."""
    trace_state: str = ""
    """As in the W3C header ``tracestate``; empty where there is none."""


class Opened(NamedTuple):
    """A top-level range that began; its row follows when it ends."""

    event_id: int
    name: str
    source: int
    start_ns: int
    thread: int
    """Index into ``Batch.threads``."""
    context: int
    """Index into ``Batch.contexts``."""


NO_CONTEXT = SpanContextRef(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Event:
    """One row, with the columns as attributes and every index resolved."""

    event_id: int
    kind: EventKind
    name: str
    scope: RecordScope
    source: EventSource
    start_ns: int
    end_ns: int
    thread: ThreadInfo
    end_thread: ThreadInfo
    sequence_nr: int
    forward_thread_id: int
    handle: int
    parent: int
    root: int
    context: SpanContextRef
    node_id: int
    debug_handle: int
    flags: EventFlag
    shapes: str
    dtypes: str
    module: str
    error: str
    profiler: int
    flops: int
    stack: str
    nbytes: int
    device: str

    @property
    def thread_id(self) -> int:
        """RecordFunction's logical id of the thread that began the range."""
        return self.thread.thread_id

    @property
    def end_thread_id(self) -> int:
        """The logical id of the thread that ended it."""
        return self.end_thread.thread_id

    @property
    def duration_ns(self) -> int:
        """Nanoseconds between begin and end."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class Batch:
    """Columns of equal length and the tables they index.

    ``shapes`` is JSON text, a list with one shape per input (``[[2,3],[]]``, a scalar is ``[]``, a tensor list is a list of
    shapes); ``dtypes`` is JSON text, a list of strings. ``error`` is ``"<exception type>: <message>"``.
    ``root`` is the event id of the outermost enclosing range (the row's own at top level). ``context`` is, on every row, the
    span context that was current when the row's outermost range began. ``profiler`` is the profiler run that the thread worked
    for when the row began, 0 where there was none. ``flops`` counts floating point operations, 0 where nobody asked for them or
    PyTorch doesn't count them. ``stack`` is one ``file(line): function`` a line, innermost first. A row of EventKind.MEMORY has
    ``nbytes`` that were allocated (negative: freed) on ``device`` (``cpu``, ``cuda:0``); it and a mark end when they start.

    The first ``closed`` rows are what happened. What follows, where a drain was asked for it, are copies of ranges that are
    open still: partial, ended for now, and there again when they really end.
    """

    event_id: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    name: NDArray[np.uint32]
    scope: NDArray[np.uint8]
    source: NDArray[np.uint8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.uint32]
    end_thread: NDArray[np.uint32]
    sequence_nr: NDArray[np.int64]
    forward_thread_id: NDArray[np.uint64]
    handle: NDArray[np.uint64]
    parent: NDArray[np.uint64]
    root: NDArray[np.uint64]
    context: NDArray[np.uint32]
    node_id: NDArray[np.int64]
    debug_handle: NDArray[np.int64]
    flags: NDArray[np.uint32]
    shapes: NDArray[np.uint32]
    dtypes: NDArray[np.uint32]
    module: NDArray[np.uint32]
    error: NDArray[np.uint32]
    profiler: NDArray[np.uint32]
    flops: NDArray[np.int64]
    stack: NDArray[np.uint32]
    nbytes: NDArray[np.int64]
    device: NDArray[np.uint32]
    names: Sequence[str]
    threads: Sequence[ThreadInfo]
    contexts: Sequence[SpanContextRef] = (NO_CONTEXT,)
    opened: Sequence[Opened] = field(default=())
    closed: int = -1
    """How many rows are not copies of open ranges; -1, the default, says all and becomes that number."""
    clock_jump_ns: int = 0
    """By how much the wall clock was set, where that was over a second; what begins from here on goes by it as it is now."""
    complete: bool = True
    """False where memory was short: the next drain has more of what closed."""

    def __post_init__(self) -> None:
        if self.closed < 0:
            object.__setattr__(self, "closed", len(self))

    def __len__(self) -> int:
        return len(self.event_id)

    def take(self, rows: NDArray[Any] | slice, **columns: Any) -> Batch:
        """A batch of these rows with the same tables and nothing announced; all of them count as closed.

        Args:
            rows: a mask, indices or a slice.
            columns: what to have in place of columns or tables, already of the new length.
        """
        taken = {name: getattr(self, name)[rows] for name in COLUMN_TYPES if name not in columns}
        return replace(self, **{"opened": (), **taken, **columns}, closed=-1)

    def events(self) -> Iterator[Event]:
        """The rows, one by one, every index resolved. For reading and for tests; sinks read the columns."""
        return (Event(**columns) for columns in self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """The columns of an Event, row by row."""
        lists = {name: getattr(self, name).tolist() for name in COLUMN_TYPES}
        for row in range(len(self)):
            yield self._resolved({name: column[row] for name, column in lists.items()})

    def _resolved(self, row: dict[str, Any]) -> dict[str, Any]:
        for text in TEXT_COLUMNS:
            row[text] = self.names[row[text]]
        for thread in ("thread", "end_thread"):
            row[thread] = self.threads[row[thread]]
        row["context"] = self.contexts[row["context"]]
        row["kind"], row["scope"] = EventKind(row["kind"]), RecordScope(row["scope"])
        row["source"], row["flags"] = EventSource(row["source"]), EventFlag(row["flags"])
        return row


assert list(COLUMN_TYPES) == [item.name for item in fields(Batch)][: len(COLUMN_TYPES)]
