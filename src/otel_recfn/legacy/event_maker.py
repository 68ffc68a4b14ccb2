"""The events of a batch's rows: a push with all fields of its range, a pop, a mark or a change of
memory with few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import equals
from otel_recfn.legacy.config import ProfilerConfig
from otel_recfn.legacy.cuda import CudaTimes
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.flop_arguments import SIZES, extra_args
from otel_recfn.legacy.kinds import EventKind, is_on_cuda
from otel_recfn.legacy.moments import Moments, Rows
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, RecordScope, RowKind
from otel_recfn.support.texts import flat_shapes

EVENT_KINDS = tuple(EventKind)
BLOCK = 4096
"""The number of events that are made at once."""


class _Block(NamedTuple):
    """Some moments of a thread."""

    rows: Rows
    kinds: NDArray[np.uint8]
    is_push: NDArray[np.bool_]
    is_pop: NDArray[np.bool_]
    is_memory: NDArray[np.bool_]


class EventMaker:
    """A maker of the events of a batch's rows, many at a time, with columns as lists of numbers."""

    def __init__(self, batch: Batch, cuda_times: CudaTimes, config: ProfilerConfig) -> None:
        self._batch = batch
        self._cuda_times = cuda_times
        self._config = config
        self._thread_ids = [track.thread_id for track in batch.tracks]
        self._shapes = cache(
            lambda index: flat_shapes(batch.names[index]) if batch.names[index] else ()
        )
        self._lines = cache(
            lambda index: tuple(batch.names[index].split("\n")) if batch.names[index] else ()
        )
        devices = np.unique(batch.device[equals(batch.kind, RowKind.MEMORY)]).tolist()
        self._cpu_devices = [each for each in devices if not is_on_cuda(batch.names[each])]
        self._cuda_devices = [each for each in devices if is_on_cuda(batch.names[each])]

    def events(self, moments: Moments) -> list[LegacyEvent]:
        """The events of a thread."""
        made: list[LegacyEvent] = []
        for first in range(0, len(moments.rows), BLOCK):
            rows = moments.rows[first : first + BLOCK]
            kinds = moments.kinds[first : first + BLOCK]
            masks = [
                equals(kinds, kind)
                for kind in (EventKind.PUSH_RANGE, EventKind.POP_RANGE, EventKind.MEMORY_ALLOC)
            ]
            made += self._block(_Block(rows, kinds, *masks))
        return made

    def _block(self, block: _Block) -> list[LegacyEvent]:
        columns = self._columns(block) | self._range_columns(block)
        defaults = {field.name: repeat(field.default) for field in dataclasses.fields(LegacyEvent)}
        made = list(map(LegacyEvent, *(defaults | columns).values()))
        if len(self._cuda_times):
            self._add_cuda_times(made, block)
        return made

    def _columns(self, block: _Block) -> dict[str, Iterable[Any]]:
        """The fields that events of several kinds have."""
        batch = self._batch
        rows = block.rows
        is_pop = block.is_pop
        has_range = block.is_push | is_pop
        thread = np.where(is_pop, batch.end_thread[rows], batch.thread[rows])
        node_id = np.where(is_pop, batch.end_node_id[rows], batch.node_id[rows])
        on_cpu = block.is_memory & np.isin(batch.device[rows], self._cpu_devices)
        on_cuda = block.is_memory & np.isin(batch.device[rows], self._cuda_devices)
        names = self._column(block, "name", ~is_pop & ~block.is_memory)
        return {
            "kind": map(EVENT_KINDS.__getitem__, block.kinds.tolist()),
            "name": map(batch.names.__getitem__, names),
            "thread_id": map(self._thread_ids.__getitem__, _items(thread)),
            "handle": np.where(has_range, batch.handle[rows], 0).tolist(),
            "node_id": _items(np.where(block.is_memory, -1, node_id)),
            "cpu_ns": np.where(is_pop, batch.end_ns[rows], batch.start_ns[rows]).tolist(),
            "cpu_memory_usage": self._column(block, "nbytes", on_cpu),
            "cuda_memory_usage": self._column(block, "nbytes", on_cuda),
            "event_id": batch.event_id[rows].tolist(),
        }

    def _range_columns(self, block: _Block) -> dict[str, Iterable[Any]]:
        """The fields that a push alone has."""
        batch = self._batch
        rows = block.rows
        is_push = block.is_push
        is_async = batch.flags[rows] & np.uint32(EventFlag.ASYNC) != 0
        is_backward = equals(batch.scope[rows], RecordScope.BACKWARD_FUNCTION)
        shapes = self._column(block, "shapes", is_push & self._config.report_input_shapes)
        columns: dict[str, Iterable[Any]] = {
            "shapes": map(self._shapes, shapes),
            "is_async": _items(is_push & is_async),
            "sequence_nr": self._column(block, "sequence_nr", is_push, otherwise=-1),
            "fwd_thread_id": self._column(block, "forward_thread_id", is_push),
            "scope": self._column(block, "scope", is_push),
            "flops": self._column(block, "flops", is_push),
            "stack": map(self._lines, self._column(block, "stack", is_push & ~is_backward)),
        }
        if self._config.with_flops:
            columns["_extra_args"] = self._flop_arguments(rows, is_push.tolist())
        return columns

    def _column(
        self, block: _Block, name: str, has_it: NDArray[np.bool_], otherwise: int = 0
    ) -> Iterable[Any]:
        """The values of a column for the events that have it."""
        return _items(np.where(has_it, getattr(self._batch, name)[block.rows], otherwise))

    def _add_cuda_times(self, made: Iterable[LegacyEvent], block: _Block) -> None:
        """Add the times on the GPU that were recorded for these events."""
        batch = self._batch
        has_range = block.is_push | block.is_pop
        keys = np.where(has_range, batch.handle[block.rows], batch.event_id[block.rows])
        for event, key in zip(made, keys.tolist(), strict=True):
            record = self._cuda_times.take(event.kind, key)
            if record is not None:
                event.device = record.device
                event.cuda_event = record.event

    def _flop_arguments(self, rows: Rows, pushes: list[bool]) -> Iterator[Mapping[str, Any] | None]:
        """The arguments from which the FLOPs of each row's range were counted."""
        names = self._batch.names
        texts = [
            getattr(self._batch, column)[rows].tolist()
            for column in ("name", "shapes", "dtypes", "concrete_inputs")
        ]
        for is_push, name, shapes, dtypes, concrete in zip(pushes, *texts, strict=True):
            if not is_push or names[name] not in SIZES:
                yield None
                continue
            sizes = self._shapes(shapes)
            yield extra_args(names[name], sizes, names[dtypes], names[concrete]) or None


def _items(column: NDArray[Any]) -> Iterable[Any]:
    """The items of a column, in most of which all are the same."""
    first = column[0].item()
    return repeat(first) if (column == first).all() else column.tolist()
