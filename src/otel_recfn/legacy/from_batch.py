"""Rows of the event store as the legacy profiler's events: a push and a pop per range, in lists per thread.

Of a thread, begins are ordered by the ordinals of their event ids, and ends by their rows. Whether an end or a begin came first
is decided by their times, and where those are equal by their rows: what began inside a range has an earlier row.

    x's end comes before y's begin when x began before y, and x.end_ns < y.start_ns, or they are equal and x's row is above y's

A range that ended on another thread has its pop on its own thread's list, with the other thread's id, where its time is. One
that is open still has no pop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cache, partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.input_lists import flat_shapes
from otel_recfn.callbacks.record_function import next_handle
from otel_recfn.legacy.config import EventKind, ProfilerConfig
from otel_recfn.legacy.cuda import CudaTimes
from otel_recfn.legacy.event import LegacyEvent, memory_columns
from otel_recfn.legacy.extra_args import SIZES, Inputs, extra_args
from otel_recfn.legacy.thread_events import ThreadEvents
from otel_recfn.model import events
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, EventFlag, RecordScope

Rows: TypeAlias = NDArray[np.int64]
"""Positions in a batch."""

RANGE = events.EventKind.RANGE
KINDS = np.zeros(len(events.EventKind), np.uint8)
KINDS[RANGE] = EventKind.PUSH_RANGE
KINDS[events.EventKind.MARK], KINDS[events.EventKind.MEMORY] = EventKind.MARK, EventKind.MEMORY_ALLOC
"""What each kind of row is for the legacy profiler when it begins."""
EXACT_AS_FLOAT = 1 << 53
"""Whole numbers up to this one are, and handles travel as floats."""
BLOCK = 4096
"""Events that are made at once."""
DEFAULTS = {field.name: repeat(field.default) for field in dataclasses.fields(LegacyEvent)}


def event_lists(batch: Batch, cuda_times: CudaTimes, config: ProfilerConfig) -> list[ThreadEvents]:
    """One list per thread that has rows, in the order in which the threads first recorded."""
    maker = _EventMaker(batch, cuda_times, config)
    number = batch.event_id >> np.uint64(ORDINAL_BITS)
    return [_thread_events(batch, np.flatnonzero(number == each), maker) for each in np.unique(number)]


def _thread_events(batch: Batch, rows: Rows, maker: _EventMaker) -> ThreadEvents:
    """The events of a thread, from its rows."""
    moments = _moments(batch, rows)
    made = ThreadEvents.made_by(len(moments.rows), partial(maker.events, moments))
    if maker.times_on_gpu():
        _time_memory(made)
    return made


def _time_memory(events: Iterable[LegacyEvent]) -> None:
    """Give changes of memory without a time on the GPU the newest one that their thread had then; none where it had none yet.

    They have none of their own where this PyTorch lacks what takes it natively, or stubs in Python are registered: PyTorch's
    allocator of GPU memory holds its lock as it reports a change, and whoever waits for that lock may have the GIL.
    """
    device, newest = -1, None
    for event in events:
        if event.kind == EventKind.MEMORY_ALLOC and event.cuda_event is None:
            event.device, event.cuda_event = device, newest
        elif event.cuda_event is not None:
            device, newest = event.device, event.cuda_event


# --- in which order the begins and ends of a thread came to pass


class Moments(NamedTuple):
    """What happened in a thread, in its order."""

    rows: Rows
    kinds: NDArray[np.uint8]
    """Of the legacy profiler: a push and a pop of a range have one row."""


def _moments(batch: Batch, rows: Rows) -> Moments:
    begins = rows[np.argsort(batch.event_id[rows], kind="stable")]
    ends = rows[(batch.kind[rows] == RANGE) & (batch.flags[rows] & EventFlag.PARTIAL == 0)]
    here = batch.thread[ends] == batch.end_thread[ends]
    begins_before = _begins_before_ends(batch, begins, ends[here])
    place_of_ends = begins_before + np.arange(len(begins_before))
    place_of_begins = np.arange(len(begins)) + np.searchsorted(begins_before, np.arange(len(begins)), "right")
    count = len(begins) + int(np.count_nonzero(here))
    moments = Moments(np.empty(count, np.int64), np.full(count, EventKind.POP_RANGE, np.uint8))
    moments.rows[place_of_begins], moments.kinds[place_of_begins] = begins, KINDS[batch.kind[begins]]
    moments.rows[place_of_ends] = ends[here]
    return moments if here.all() else _with_ends_elsewhere(batch, moments, ends[~here])


def _with_ends_elsewhere(batch: Batch, here: Moments, ends: Rows) -> Moments:
    """Each where its time is, after what happened in the thread at that time."""
    rows = np.concatenate((here.rows, ends))
    kinds = np.concatenate((here.kinds, np.full(len(ends), EventKind.POP_RANGE, np.uint8)))
    times = np.where(kinds == EventKind.POP_RANGE, batch.end_ns[rows], batch.start_ns[rows])
    order = np.argsort(times, kind="stable")
    return Moments(rows[order], kinds[order])


def _begins_before_ends(batch: Batch, begins: Rows, ends: Rows) -> Rows:
    """How many begins stand before each end; both in the order in which they came to pass.

    An end stands before the first begin that came after it, and after the ends that stand before it in their rows' order.
    """
    starts = batch.start_ns[begins]
    if np.any(starts[1:] < starts[:-1]):  # a clock that went back
        return _one_by_one(batch, begins, ends)
    own = np.searchsorted(batch.event_id[begins], batch.event_id[ends]) + 1
    first = np.searchsorted(starts, batch.end_ns[ends], "left")
    later = np.searchsorted(starts, batch.end_ns[ends], "right")
    for tie in np.flatnonzero(first < later).tolist():  # begins at the very time of the end: the rows decide
        same = begins[first[tie] : later[tie]]
        after = np.flatnonzero((same > ends[tie]) & (np.arange(first[tie], later[tie]) >= own[tie]))
        first[tie] = first[tie] + after[0] if len(after) else later[tie]
    found: Rows = np.maximum.accumulate(np.maximum(first, own)) if len(ends) else first
    return found


def _one_by_one(batch: Batch, begins: Rows, ends: Rows) -> Rows:
    columns = (batch.event_id[begins], batch.start_ns[begins], begins)
    coming = list(zip(*(column.tolist() for column in columns), strict=True))
    found, at = [], 0
    for end in ends.tolist():
        event_id, moment = int(batch.event_id[end]), (int(batch.end_ns[end]), end)
        while at < len(coming) and not (event_id < coming[at][0] and moment < coming[at][1:]):
            at += 1
        found.append(at)
    return np.array(found, np.int64)


# --- their events


class _EventMaker:
    """Makes the events of a batch's rows, many at a time."""

    def __init__(self, batch: Batch, cuda_times: CudaTimes, config: ProfilerConfig) -> None:
        self._batch, self._cuda_times, self._config = batch, cuda_times, config
        self._thread_ids = [track.thread_id for track in batch.tracks]
        self._shapes = cache(lambda index: _shapes(batch.names[index]))
        self._lines = cache(lambda index: _lines(batch.names[index]))
        self._handles = batch.handle
        inexact = np.flatnonzero(batch.handle > EXACT_AS_FLOAT)
        if len(inexact):
            self._handles = batch.handle.copy()
            self._handles[inexact] = [next_handle() for _ in range(len(inexact))]

    def times_on_gpu(self) -> bool:
        """Whether events have times on a GPU, which are taken as the events are made."""
        return len(self._cuda_times) > 0

    def events(self, moments: Moments) -> list[LegacyEvent]:
        """All events of a thread, some at a time: their columns are lists of numbers meanwhile."""
        made: list[LegacyEvent] = []
        for first in range(0, len(moments.rows), BLOCK):
            made += self._block(moments.rows[first : first + BLOCK], moments.kinds[first : first + BLOCK])
        return made

    def _block(self, rows: Rows, kinds: NDArray[np.uint8]) -> list[LegacyEvent]:
        found = np.empty(len(rows), object)
        for kind, make in (
            (EventKind.PUSH_RANGE, self.pushes),
            (EventKind.POP_RANGE, self.pops),
            (EventKind.MARK, self.marks),
            (EventKind.MEMORY_ALLOC, self.memory),
        ):
            chosen = np.flatnonzero(kinds == kind)
            if len(chosen):
                found[chosen] = _as_array(make(rows[chosen]))
        made: list[LegacyEvent] = found.tolist()
        return made

    def pushes(self, rows: Rows) -> list[LegacyEvent]:
        """What ranges are when they begin."""
        batch, config = self._batch, self._config
        stacks = np.where(batch.scope[rows] == RecordScope.BACKWARD_FUNCTION, np.uint32(0), batch.stack[rows])
        made = self._events(
            EventKind.PUSH_RANGE,
            rows,
            name=self._texts(batch.name[rows]),
            thread_id=self._threads(batch.thread[rows]),
            handle=self._handles[rows].tolist(),
            shapes=map(self._shapes, batch.shapes[rows].tolist()) if config.report_input_shapes else DEFAULTS["shapes"],
            node_id=batch.node_id[rows].tolist(),
            is_async=(batch.flags[rows] & EventFlag.ASYNC != 0).tolist(),
            cpu_ns=batch.start_ns[rows].tolist(),
            sequence_nr=batch.sequence_nr[rows].tolist(),
            fwd_thread_id=batch.forward_thread_id[rows].tolist(),
            scope=batch.scope[rows].tolist(),
            flops=batch.flops[rows].tolist(),
            stack=map(self._lines, stacks.tolist()),
        )
        if config.with_flops:
            self._say_what_was_counted(made, rows)
        return self._timed(made, batch.handle[rows])

    def _say_what_was_counted(self, made: list[LegacyEvent], rows: Rows) -> None:
        names = self._batch.names
        texts = [getattr(self._batch, column)[rows].tolist() for column in ("shapes", "dtypes", "concrete_inputs", "words")]
        for event, shapes, dtypes, concrete, words in zip(made, *texts, strict=True):
            if event.name in SIZES:
                inputs = Inputs(self._shapes(shapes), names[dtypes], names[concrete], names[words])
                event.set_extra_args(extra_args(event.name, inputs))

    def pops(self, rows: Rows) -> list[LegacyEvent]:
        """The ends of ranges."""
        batch = self._batch
        made = self._events(
            EventKind.POP_RANGE,
            rows,
            name=repeat(""),
            thread_id=self._threads(batch.end_thread[rows]),
            handle=self._handles[rows].tolist(),
            node_id=batch.node_id[rows].tolist(),
            cpu_ns=batch.end_ns[rows].tolist(),
        )
        return self._timed(made, batch.handle[rows])

    def marks(self, rows: Rows) -> list[LegacyEvent]:
        """Marks."""
        batch = self._batch
        made = self._events(
            EventKind.MARK,
            rows,
            name=self._texts(batch.name[rows]),
            thread_id=self._threads(batch.thread[rows]),
            node_id=batch.node_id[rows].tolist(),
            cpu_ns=batch.start_ns[rows].tolist(),
        )
        return self._timed(made, batch.event_id[rows])

    def memory(self, rows: Rows) -> list[LegacyEvent]:
        """Changes of memory."""
        batch = self._batch
        on_cpu, on_cuda = memory_columns(batch.nbytes[rows], self._texts(batch.device[rows]))
        made = self._events(
            EventKind.MEMORY_ALLOC,
            rows,
            name=repeat(""),
            thread_id=self._threads(batch.thread[rows]),
            cpu_ns=batch.start_ns[rows].tolist(),
            cpu_memory_usage=on_cpu,
            cuda_memory_usage=on_cuda,
        )
        return self._timed(made, batch.event_id[rows])

    def _events(self, kind: EventKind, rows: Rows, **columns: Iterable[Any]) -> list[LegacyEvent]:
        """An event of that kind for each row; a field without a column has its default."""
        fields = DEFAULTS | columns | {"kind": repeat(kind), "event_id": self._batch.event_id[rows].tolist()}
        return list(map(LegacyEvent, *fields.values()))

    def _timed(self, made: list[LegacyEvent], keys: NDArray[np.uint64]) -> list[LegacyEvent]:
        if not len(self._cuda_times):
            return made
        for event, key in zip(made, keys.tolist(), strict=True):
            record = self._cuda_times.take(event.kind, key)
            if record is not None:
                event.device, event.cuda_event = record.device, record.event
        return made

    def _texts(self, indices: NDArray[np.uint32]) -> list[str]:
        return list(map(self._batch.names.__getitem__, indices.tolist()))

    def _threads(self, indices: NDArray[np.uint32]) -> list[int]:
        return list(map(self._thread_ids.__getitem__, indices.tolist()))


def _as_array(made: list[LegacyEvent]) -> NDArray[Any]:
    array = np.empty(len(made), object)
    array[:] = made
    return array


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    return flat_shapes(text) if text else ()


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()
