"""Builds a Batch row by row for the Python twin. The only part of the twin that needs numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from otel_recfn.model.batch import Batch, Opened
from otel_recfn.model.columns import COLUMN_TYPES, EMPTY_ROW
from otel_recfn.model.tables import NO_CONTEXT, SpanContextRef, Track
from otel_recfn.recording.limits import MAX_ERROR_BYTES, MAX_NAME_BYTES, MAX_SHAPES_BYTES, MAX_STACK_BYTES, MAX_STACKTRACE_BYTES
from otel_recfn.recording.protocol import ContextReading
from otel_recfn.recording.python.log import NO_DETAILS, NO_FAILURE, Details, Failure, ThreadLog
from otel_recfn.recording.python.text import clean_text

EVENT_ID = list(COLUMN_TYPES).index("event_id")


@dataclass(eq=False)
class PythonRange:
    """A range as far as it is known: ``end_ns``, ``end_log`` and ``failure`` are set when it ends."""

    log: ThreadLog
    event_id: int
    parent: int
    root: int
    context: ContextReading | None
    name: str
    scope: int
    source: int
    module: str
    flags: int
    start_ns: int
    """Monotonic, as ``end_ns``."""
    offset_ns: int = 0
    """What to add to both to get Unix time."""
    profiler: int = 0
    node_id: int = -1
    caller: int = 0
    details: Details = NO_DETAILS
    cut_ns: int | None = None
    """Where it ends because something stays open in it; None: where it was ended."""
    end_ns: int = 0
    end_log: ThreadLog | None = None
    failure: Failure = NO_FAILURE
    outer: PythonRange | None = None
    """What was its thread's innermost open range when it began."""


class BatchBuilder:
    """Interns what the columns index. One per drain.

    Args:
        split_flags: see Recorder.split_flags.
    """

    def __init__(self, split_flags: Callable[[int], tuple[int, str]]) -> None:
        self._split_flags = split_flags
        self._names: dict[str, int] = {"": 0}
        self._threads: dict[ThreadLog, int] = {}
        self._contexts: dict[SpanContextRef, int] = {NO_CONTEXT: 0}
        self._rows: list[tuple[int, ...]] = []
        self._opened: list[Opened] = []
        self._closed = -1
        """How many rows stand before the copies of open ranges; -1: there are none."""

    def take_back_announcement(self, event_id: int) -> None:
        """Remove the last announcement, if it is that range's."""
        if self._opened and self._opened[-1].event_id == event_id:
            self._opened.pop()

    def newest_event_id(self) -> int:
        """The event id of the last row; 0 where there is none."""
        return self._rows[-1][EVENT_ID] if self._rows else 0

    def begin_copies(self) -> None:
        """The rows from here on are copies of ranges that are open."""
        self._closed = len(self._rows)

    def drop_copies(self) -> None:
        """Remove the copies of open ranges, and keep the rows of ranges that closed."""
        if self._closed >= 0:
            del self._rows[self._closed :]
            self._closed = -1

    def announce(self, opened: PythonRange) -> None:
        """Note that a top-level range began."""
        self._opened.append(
            Opened(
                event_id=opened.event_id,
                name=clean_text(opened.name, MAX_NAME_BYTES),
                source=opened.source,
                start_ns=opened.start_ns + opened.offset_ns,
                thread=self._thread(opened.log),
                context=self._context(opened.context),
                flags=opened.flags,
            )
        )

    def add(self, closed: PythonRange) -> None:
        """Add the row of a range that ended."""
        details = closed.details
        values = {
            **EMPTY_ROW,
            "event_id": closed.event_id,
            "kind": details.kind,
            "name": self._text(closed.name, MAX_NAME_BYTES),
            "scope": closed.scope,
            "source": closed.source,
            "start_ns": closed.start_ns + closed.offset_ns,
            "end_ns": closed.end_ns + closed.offset_ns,
            "thread": self._thread(closed.log),
            "end_thread": self._thread(closed.end_log or closed.log),
            "sequence_nr": details.sequence_nr,
            "forward_thread_id": details.forward_thread_id,
            "handle": details.handle or closed.event_id,
            "parent": closed.parent,
            "root": closed.root,
            "context": self._context(closed.context),
            "node_id": closed.node_id,
            "debug_handle": details.debug_handle,
            "flags": closed.flags,
            "shapes": self._text(details.shapes, MAX_SHAPES_BYTES),
            "dtypes": self._text(details.dtypes, MAX_SHAPES_BYTES),
            "module": self._text(closed.module, MAX_NAME_BYTES),
            "error": self._text(closed.failure.error, MAX_ERROR_BYTES),
            "profiler": closed.profiler,
            "stack": self._text(details.stack, MAX_STACK_BYTES),
            "nbytes": details.nbytes,
            "device": self._text(details.device, MAX_NAME_BYTES),
            "caller": closed.caller,
            "step_number": details.step_number,
            "stacktrace": self._text(closed.failure.stacktrace, MAX_STACKTRACE_BYTES),
            "code": self._text(details.code, MAX_NAME_BYTES),
            "concrete_inputs": self._text(details.concrete_inputs, MAX_SHAPES_BYTES),
            "words": self._text(details.words, MAX_SHAPES_BYTES),
        }
        self._rows.append(tuple([values[column] for column in COLUMN_TYPES]))

    def seal(self, clock_jump_ns: int, drained_ns: int, complete: bool) -> Batch:
        """The batch. What the builder is used for then is not in it."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(COLUMN_TYPES)
        arrays: dict[str, Any] = {
            name: np.array(column, dtype=dtype) for (name, dtype), column in zip(COLUMN_TYPES.items(), columns, strict=True)
        }
        return Batch(
            **arrays,
            names=tuple(self._names),
            tracks=tuple([_track(log) for log in self._threads]),
            contexts=tuple(self._contexts),
            opened=tuple(self._opened),
            closed=self._closed,
            clock_jump_ns=clock_jump_ns,
            drained_ns=drained_ns,
            complete=complete,
        )

    def __len__(self) -> int:
        return len(self._rows)

    def _text(self, text: str, max_bytes: int) -> int:
        return _index_in(self._names, clean_text(text, max_bytes)) if text else 0  # as most are

    def _thread(self, log: ThreadLog) -> int:
        return _index_in(self._threads, log)

    def _context(self, reading: ContextReading | None) -> int:
        if reading is None:
            return 0
        return _index_in(self._contexts, SpanContextRef(reading.trace_id, reading.span_id, *self._split_flags(reading.flags)))


def _index_in(table: dict[Any, int], item: Any) -> int:
    index = table.get(item)
    if index is None:
        index = table[item] = len(table)
    return index


def _track(log: ThreadLog) -> Track:
    return Track(number=log.number, thread_id=log.number, native_id=log.native_id, ident=log.ident, name=log.name)
