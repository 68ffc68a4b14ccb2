"""The events of a run in lists per thread, made when a list is first read: most of the millions never are.

Of a thread, begins are ordered by the ordinals of their event ids, and ends by their rows. Whether an end or a begin came first
is decided by their times, and where those are equal by their rows: what began inside a range has an earlier row.

    x's end comes before y's begin when x began before y, and x.end_ns < y.start_ns, or they are equal and x's row is above y's

A range that ended on another thread has its pop in its own thread's list, with the other thread's id; an open one none.
"""

from __future__ import annotations

import dataclasses
import gc
import json
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from copy import copy
from functools import cache, cached_property, lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.averages import KeyAverages
from otel_recfn.legacy.cuda import CudaTimes
from otel_recfn.legacy.values import EventKind, LegacyEvent, ProfilerConfig, is_on_cuda
from otel_recfn.model import events
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, EventFlag, RecordScope
from otel_recfn.support.texts import flat_shapes

Rows: TypeAlias = NDArray[np.int64]
"""Positions in a batch."""

RANGE = events.RowKind.RANGE
KINDS = np.zeros(len(events.RowKind), np.uint8)
KINDS[RANGE] = EventKind.PUSH_RANGE
KINDS[events.RowKind.MARK], KINDS[events.RowKind.MEMORY] = EventKind.MARK, EventKind.MEMORY_ALLOC
"""The legacy profiler's kind for the begin of each kind of row."""
KIND_OF = tuple(EventKind)
BLOCK = 4096
"""The number of events that are made at once."""


class ThreadEvents(UserList[LegacyEvent]):
    """A list of events, which has one object at each place, whoever reads it and however often.

    ``events`` are there already, or a function makes them when one is read.
    """

    def __init__(
        self, events: Iterable[LegacyEvent] | Callable[[], list[LegacyEvent]] = ()
    ) -> None:
        self._make = events if callable(events) else partial(list, events)

    @cached_property
    def data(self) -> list[LegacyEvent]:  # type: ignore[override]
        """The list that UserList works on."""
        collects = gc.isenabled()
        gc.disable()  # Python's collector would go through millions of new objects again and again
        try:
            found = self._make()
        finally:
            if collects:
                gc.enable()
        self._make = list[LegacyEvent]  # lets go of what the events were made of
        return found

    def __iter__(self) -> Iterator[LegacyEvent]:
        return iter(self.data)

    def __copy__(self) -> ThreadEvents:
        return ThreadEvents(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadEvents, (self.data,)


class ThreadEventLists(list["MutableSequence[LegacyEvent]"]):
    """The events of each thread, in order; each event is made when it is first read.

    Attributes:
        lost: what ran and is not in them, by counter; empty where all is.
    """

    def __init__(
        self,
        lists: Iterable[MutableSequence[LegacyEvent]] = (),
        averages: Callable[[], KeyAverages] | None = None,
        lost: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(lists)
        self._averages = averages
        self.lost = dict(lost or {})

    def key_averages(self) -> KeyAverages:
        """Count, total and self time per name, of the ranges of this process, as ``profile`` has them."""
        averages = self._averages() if self._averages is not None else KeyAverages(())
        return KeyAverages(averages, self.lost)


def event_lists(batch: Batch, cuda_times: CudaTimes, config: ProfilerConfig) -> list[ThreadEvents]:
    """A list for each thread that has rows, in the order in which the threads first recorded."""
    maker, lists = _EventMaker(batch, cuda_times, config), []
    number = batch.event_id >> np.uint64(ORDINAL_BITS)
    for each in np.unique(number):
        moments = _moments(batch, np.flatnonzero(number == each))
        lists.append(ThreadEvents(partial(maker.events, moments)))
        if len(cuda_times):
            _add_times_to_memory(lists[-1])
    return lists


def _add_times_to_memory(events: Iterable[LegacyEvent]) -> None:
    """Give changes of memory the newest time on the GPU that their thread had then, if it had one.

    They have none of their own: PyTorch's allocator of GPU memory holds its lock as it reports a change, and whoever waits for
    that lock may have the GIL.
    """
    device, newest = -1, None
    for event in events:
        if event.kind == EventKind.MEMORY_ALLOC:
            event.device, event.cuda_event = device, newest
        elif event.cuda_event is not None:
            device, newest = event.device, event.cuda_event


# --- the order of begins and ends in a thread


class Moments(NamedTuple):
    """The moments of a thread, in order."""

    rows: Rows
    kinds: NDArray[np.uint8]
    """The legacy profiler's kinds: a push and a pop of a range have one row."""


def _moments(batch: Batch, rows: Rows) -> Moments:
    begins = rows[np.argsort(batch.event_id[rows], kind="stable")]
    ends = rows[(batch.kind[rows] == RANGE) & (batch.flags[rows] & EventFlag.PARTIAL == 0)]
    here = batch.thread[ends] == batch.end_thread[ends]
    kinds = np.take(KINDS, batch.kind[begins])
    places = _begins_before_ends(batch, begins, ends[here])
    moments = Moments(
        np.insert(begins, places, ends[here]), np.insert(kinds, places, EventKind.POP_RANGE)
    )
    return moments if here.all() else _with_ends_elsewhere(batch, moments, ends[~here])


def _with_ends_elsewhere(batch: Batch, here: Moments, ends: Rows) -> Moments:
    """The moments, with ends on other threads added at their times, after what happened in the thread at that time."""
    rows = np.concatenate((here.rows, ends))
    kinds = np.concatenate((here.kinds, np.full(len(ends), EventKind.POP_RANGE, np.uint8)))
    times = np.where(kinds == EventKind.POP_RANGE, batch.end_ns[rows], batch.start_ns[rows])
    order = np.argsort(times, kind="stable")
    return Moments(rows[order], kinds[order])


def _begins_before_ends(batch: Batch, begins: Rows, ends: Rows) -> Rows:
    """The number of begins before each end: of its own range, and of those that began before it; each in their order."""
    starts = np.maximum.accumulate(batch.start_ns[begins])  # a clock may go back
    own = np.searchsorted(batch.event_id[begins], batch.event_id[ends]) + 1
    earlier = np.searchsorted(starts, batch.end_ns[ends], "left")
    until_then = np.searchsorted(starts, batch.end_ns[ends], "right")
    for tie in np.flatnonzero(
        earlier < until_then
    ).tolist():  # begins at the very time of the end: the rows decide
        same = begins[earlier[tie] : until_then[tie]]
        after = np.flatnonzero(
            (same > ends[tie]) & (np.arange(earlier[tie], until_then[tie]) >= own[tie])
        )
        earlier[tie] = earlier[tie] + after[0] if len(after) else until_then[tie]
    found: Rows = np.maximum.accumulate(np.maximum(earlier, own)) if len(ends) else earlier
    return found


# --- the events


class _EventMaker:
    """A maker of the events of a batch's rows, many at a time, with columns as lists of numbers."""

    def __init__(self, batch: Batch, cuda_times: CudaTimes, config: ProfilerConfig) -> None:
        self._batch, self._cuda_times, self._config = batch, cuda_times, config
        self._thread_ids = [track.thread_id for track in batch.tracks]
        self._shapes = cache(
            lambda index: flat_shapes(batch.names[index]) if batch.names[index] else ()
        )
        self._lines = cache(
            lambda index: tuple(batch.names[index].split("\n")) if batch.names[index] else ()
        )
        devices = np.unique(batch.device[batch.kind == events.RowKind.MEMORY]).tolist()
        self._devices = {
            cuda: [each for each in devices if is_on_cuda(batch.names[each]) is cuda]
            for cuda in (False, True)
        }

    def events(self, moments: Moments) -> list[LegacyEvent]:
        """The events of a thread."""
        made: list[LegacyEvent] = []
        for first in range(0, len(moments.rows), BLOCK):
            made += self._block(
                moments.rows[first : first + BLOCK], moments.kinds[first : first + BLOCK]
            )
        return made

    def _block(self, rows: Rows, kinds: NDArray[np.uint8]) -> list[LegacyEvent]:
        """The events of some rows: a push with all fields of its range, the others with few."""
        batch, names = self._batch, self._batch.names
        push, pop, memory = [
            kinds == kind
            for kind in (EventKind.PUSH_RANGE, EventKind.POP_RANGE, EventKind.MEMORY_ALLOC)
        ]

        def column(name: str, has_it: Any = push, otherwise: int = 0) -> Iterable[Any]:
            return _items(np.where(has_it, getattr(batch, name)[rows], otherwise))

        on_cpu, on_cuda = (
            memory & np.isin(batch.device[rows], self._devices[is_cuda])
            for is_cuda in (False, True)
        )
        columns = {
            "kind": map(KIND_OF.__getitem__, kinds.tolist()),
            "name": map(names.__getitem__, column("name", ~pop & ~memory)),
            "thread_id": map(
                self._thread_ids.__getitem__,
                _items(np.where(pop, batch.end_thread[rows], batch.thread[rows])),
            ),
            "handle": np.where(push | pop, batch.handle[rows], 0).tolist(),
            "shapes": map(self._shapes, column("shapes", push & self._config.report_input_shapes)),
            "node_id": column("node_id", ~memory, -1),
            "is_async": _items(push & (batch.flags[rows] & EventFlag.ASYNC != 0)),
            "cpu_ns": np.where(pop, batch.end_ns[rows], batch.start_ns[rows]).tolist(),
            "cpu_memory_usage": column("nbytes", on_cpu),
            "cuda_memory_usage": column("nbytes", on_cuda),
            "sequence_nr": column("sequence_nr", otherwise=-1),
            "fwd_thread_id": column("forward_thread_id"),
            "scope": column("scope"),
            "flops": column("flops"),
            "stack": map(
                self._lines,
                column("stack", push & (batch.scope[rows] != RecordScope.BACKWARD_FUNCTION)),
            ),
            "event_id": batch.event_id[rows].tolist(),
        }
        if self._config.with_flops:
            columns["_extra_args"] = self._counted(rows, push.tolist())
        defaults = {field.name: repeat(field.default) for field in dataclasses.fields(LegacyEvent)}
        made = list(map(LegacyEvent, *(defaults | columns).values()))
        if len(self._cuda_times):
            keys = np.where(push | pop, batch.handle[rows], batch.event_id[rows]).tolist()
            for event, key in zip(made, keys, strict=True):
                if (record := self._cuda_times.take(event.kind, key)) is not None:
                    event.device, event.cuda_event = record.device, record.event
        return made

    def _counted(self, rows: Rows, pushes: list[bool]) -> Iterator[Mapping[str, Any] | None]:
        """The arguments from which the FLOPs of each row's range were counted."""
        names = self._batch.names
        texts = [
            getattr(self._batch, column)[rows].tolist()
            for column in ("name", "shapes", "dtypes", "concrete_inputs")
        ]
        for is_push, name, shapes, dtypes, concrete in zip(pushes, *texts, strict=True):
            is_counted = is_push and names[name] in SIZES
            yield (
                extra_args(names[name], self._shapes(shapes), names[dtypes], names[concrete])
                if is_counted
                else None
            )


def _items(column: NDArray[Any]) -> Iterable[Any]:
    """The items of a column, in most of which all are the same."""
    first = column[0].item()
    return repeat(first) if (column == first).all() else column.tolist()


# --- the arguments that FLOPs are counted from: sizes and numbers among inputs (source: ``saveExtraArgs`` of PyTorch)

_FIRST, _SECOND = "mat1_size", "mat2_size"
CONV = "aten::conv2d"
SIZES: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::add": (("mat_size", 0),),
    "aten::mul": (("mat_size", 0),),
    "aten::mm": ((_FIRST, 0), (_SECOND, 1)),
    "aten::bmm": ((_FIRST, 0), (_SECOND, 1)),
    "aten::addmm": ((_FIRST, 1), (_SECOND, 2)),
    "aten::baddbmm": ((_FIRST, 1), (_SECOND, 2)),
    CONV: (("input_size", 0), ("weight_size", 1)),
}
"""PyTorch's names of sizes by operator, and the inputs that have them. If one of these is no tensor, there are none."""
OTHERS_OF_CONV = (("stride", 3), ("padding", 4), ("dilation", 5), ("groups", 6))
"""PyTorch's names of the inputs that are numbers, or lists of numbers."""
DIMENSIONS_OF_CONV = 4
"""The dimensions of the weight; with others there are no sizes."""
NO_TENSORS = ("", "Scalar", "...")
"""Texts in place of a dtype."""
KEPT = 1024
"""The number of distinct texts of inputs whose meanings are kept."""


def extra_args(
    operator: str, shapes: tuple[tuple[int, ...], ...], dtypes: str, concrete_inputs: str
) -> dict[str, Any]:
    """The arguments of a counted operator, from its row's columns; empty if it can't be counted from them."""
    of_inputs = _dtypes(dtypes)
    for _, place in SIZES[operator]:
        dtype = of_inputs[place] if place < min(len(shapes), len(of_inputs)) else ""
        if not isinstance(dtype, str) or dtype in NO_TENSORS:
            return {}
    sizes: dict[str, Any] = {name: list(shapes[place]) for name, place in SIZES[operator]}
    if operator != CONV:
        return sizes
    if len(sizes["weight_size"]) != DIMENSIONS_OF_CONV:
        return {}
    values = _values(concrete_inputs)
    return sizes | {name: copy(values[place]) for name, place in OTHERS_OF_CONV if place in values}


@lru_cache(KEPT)
def _dtypes(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text)) if text else ()


@lru_cache(KEPT)
def _values(concrete_inputs: str) -> dict[int, Any]:
    """The whole numbers and lists of numbers, by place."""
    texts = _parsed(concrete_inputs)
    numbers = (
        {place: _parsed(text) for place, text in enumerate(texts)}
        if isinstance(texts, list)
        else {}
    )
    return {place: value for place, value in numbers.items() if value is not None}


def _parsed(text: Any) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):  # no number, or a producer's own text
        return None
    return value if type(value) in (int, list) else None
