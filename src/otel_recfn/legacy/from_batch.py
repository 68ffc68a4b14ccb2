"""Rows of the event store as the legacy profiler's events: a push and a pop per range, in lists per thread.

Of a thread, begins are ordered by the ordinals of their event ids, and ends by their rows. Whether an end or a begin came first
is decided by their times, and where those are equal by their rows: what began inside a range has an earlier row.

    x's end comes before y's begin when x began before y, and x.end_ns < y.start_ns, or they are equal and x's row is above y's

A range that ended on another thread has its pop on its own thread's list, with the other thread's id, where its time is. One
that is open still has no pop.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from otel_recfn.batches.input_lists import flat_shapes
from otel_recfn.legacy.cuda_times import CudaTimes
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.event_kind import EventKind
from otel_recfn.legacy.event_list import RangeEventList
from otel_recfn.model import events
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, EventFlag
from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime.record_function import next_handle

# Plain ints: arithmetic on an IntFlag costs a microsecond.
RANGE, MARK, MEMORY = int(events.EventKind.RANGE), int(events.EventKind.MARK), int(events.EventKind.MEMORY)
ASYNC, PARTIAL, BACKWARD = int(EventFlag.ASYNC), int(EventFlag.PARTIAL), int(RecordScope.BACKWARD_FUNCTION)

EXACT_AS_FLOAT = 1 << 53
"""Whole numbers up to this one are, and handles travel as floats."""

Shapes = tuple[tuple[int, ...], ...]


class _Row(NamedTuple):
    """A row with the columns that matter here."""

    position: int
    event_id: int
    kind: int
    name: int
    scope: int
    start_ns: int
    end_ns: int
    thread: int
    end_thread: int
    sequence_nr: int
    forward_thread_id: int
    handle: int
    node_id: int
    flags: int
    shapes: int
    flops: int
    stack: int
    nbytes: int
    device: int

    @property
    def ends(self) -> bool:
        """Whether it has an end of its own."""
        return self.kind == RANGE and not self.flags & PARTIAL


def event_lists(batch: Batch, cuda_times: CudaTimes) -> list[RangeEventList]:
    """One list per thread that has rows, in the order in which the threads first recorded."""
    threads: dict[int, list[_Row]] = {}
    for row in _rows(batch):
        threads.setdefault(row.event_id >> ORDINAL_BITS, []).append(row)
    maker = _EventMaker(batch, cuda_times)
    return [_event_list(threads[number], maker) for number in sorted(threads)]


def _rows(batch: Batch) -> Iterator[_Row]:
    columns = (getattr(batch, name).tolist() for name in _Row._fields[1:])
    return map(_Row._make, zip(range(len(batch)), *columns, strict=True))


def _event_list(rows: list[_Row], maker: _EventMaker) -> RangeEventList:
    """The events of a thread, from its rows."""
    found = RangeEventList()
    ends = iter([row for row in rows if row.thread == row.end_thread and row.ends])
    end = next(ends, None)
    for begin in sorted(rows, key=attrgetter("event_id")):
        while end is not None and _ended_before(end, begin):
            found.record(maker.pop(end))
            end = next(ends, None)
        found.record(maker.begin(begin))
        if begin.thread != begin.end_thread and begin.ends:
            found.record_from_elsewhere(maker.pop(begin))
    while end is not None:
        found.record(maker.pop(end))
        end = next(ends, None)
    return found


def _ended_before(end: _Row, begin: _Row) -> bool:
    return end.event_id < begin.event_id and (end.end_ns, end.position) < (begin.start_ns, begin.position)


class _EventMaker:
    """Makes the events of a batch's rows."""

    def __init__(self, batch: Batch, cuda_times: CudaTimes) -> None:
        self._names = batch.names
        self._thread_ids = [thread.thread_id for thread in batch.tracks]
        self._cuda_times = cuda_times
        self._has_cuda_times = len(cuda_times) > 0
        self._shapes: dict[int, Shapes] = {0: ()}
        self._stacks: dict[int, tuple[str, ...]] = {0: ()}
        self._handles: dict[int, int] = {}

    def begin(self, row: _Row) -> LegacyEvent:
        """What a row is when it begins."""
        if row.kind == MARK:
            return self._mark(row)
        return self._memory(row) if row.kind == MEMORY else self._push(row)

    def _push(self, row: _Row) -> LegacyEvent:
        event = LegacyEvent(
            EventKind.PUSH_RANGE,
            self._names[row.name],
            self._thread_ids[row.thread],
            self._handle_of(row),
            self._shapes_of(row.shapes),
            row.node_id,
            bool(row.flags & ASYNC),
            cpu_ns=row.start_ns,
            sequence_nr=row.sequence_nr,
            fwd_thread_id=row.forward_thread_id,
            scope=row.scope,
            flops=row.flops,
            stack=() if row.scope == BACKWARD else self._stack_of(row.stack),
            event_id=row.event_id,
        )
        return self._timed(event, row.handle)

    def pop(self, row: _Row) -> LegacyEvent:
        """The end of a range."""
        event = LegacyEvent(
            EventKind.POP_RANGE,
            "",
            self._thread_ids[row.end_thread],
            self._handle_of(row),
            node_id=row.node_id,
            cpu_ns=row.end_ns,
            event_id=row.event_id,
        )
        return self._timed(event, row.handle)

    def _mark(self, row: _Row) -> LegacyEvent:
        event = LegacyEvent(
            EventKind.MARK,
            self._names[row.name],
            self._thread_ids[row.thread],
            node_id=row.node_id,
            cpu_ns=row.start_ns,
            event_id=row.event_id,
        )
        return self._timed(event, row.event_id)

    def _memory(self, row: _Row) -> LegacyEvent:
        event = LegacyEvent(
            EventKind.MEMORY_ALLOC, "", self._thread_ids[row.thread], cpu_ns=row.start_ns, event_id=row.event_id
        )
        event.update_memory_stats(row.nbytes, self._names[row.device])
        return event

    def _timed(self, event: LegacyEvent, key: int) -> LegacyEvent:
        record = self._cuda_times.take(event.kind, key) if self._has_cuda_times else None
        if record is not None:
            event.device, event.cuda_event = record.device, record.event
        return event

    def _handle_of(self, row: _Row) -> int:
        """The row's, or another one where that would be rounded on its way to another process."""
        if row.handle <= EXACT_AS_FLOAT:
            return row.handle
        if row.event_id not in self._handles:
            self._handles[row.event_id] = next_handle()
        return self._handles[row.event_id]

    def _shapes_of(self, text: int) -> Shapes:
        if text not in self._shapes:
            self._shapes[text] = flat_shapes(self._names[text])
        return self._shapes[text]

    def _stack_of(self, text: int) -> tuple[str, ...]:
        if text not in self._stacks:
            self._stacks[text] = tuple(self._names[text].split("\n"))
        return self._stacks[text]
