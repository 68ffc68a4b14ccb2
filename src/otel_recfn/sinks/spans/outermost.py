"""What a batch tells about outermost ranges without a span around them: which began, and what its rows add to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.announced import announced_in
from otel_recfn.batches.number_sets import distinct, groups, is_in
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import EventFlag, EventKind, EventSource
from otel_recfn.model.sources import OPTIMIZER, OPTIMIZER_STEP, SOURCES, trace_name

_RANGE = int(EventKind.RANGE)


class TopLevel(NamedTuple):
    """The begin of a top-level range."""

    event_id: int
    name: str
    source: int
    start_ns: int
    thread: Track
    flags: int = 0

    @property
    def is_step(self) -> bool:
        """Whether the range is an optimizer's step."""
        return self.name.startswith(OPTIMIZER_STEP)

    @property
    def is_of_optimizer(self) -> bool:
        """Whether it is that, or an optimizer does something else in it."""
        return self.name.startswith(OPTIMIZER)

    @property
    def is_evaluation(self) -> bool:
        """Whether it is a module call that is no part of training."""
        return bool(self.flags & EventFlag.EVALUATION)

    @property
    def is_training(self) -> bool:
        """Whether it is known to be a part of training."""
        return not self.is_evaluation and (self.source == EventSource.MODULE or self.is_of_optimizer)

    @property
    def begins_trace(self) -> bool:
        """Whether its source has a trace for each such range."""
        return SOURCES[self.source].begins_traces and not self.is_step

    @property
    def trace_name(self) -> str:
        """What a trace is called that begins with it; empty: after its thread."""
        return trace_name(self.source, self.name)


@dataclass(slots=True)
class RootRows:
    """What a batch's rows tell about each outermost range that they lie in, by its event id."""

    spans: dict[int, int]
    first_row: dict[int, int]
    ends: dict[int, int]
    stepped: set[int]
    trained: set[int]
    """In which modules are called in training."""
    evaluated: set[int]
    """Or outside of it."""
    training_threads: set[Track]


def begins_of(batch: Batch, contexts: frozenset[int]) -> list[TopLevel]:
    """The top-level begins that the batch announces, of those in these contexts."""
    return [
        TopLevel(one.event_id, one.name, one.source, one.start_ns, batch.tracks[one.thread], one.flags)
        for one in announced_in(batch, contexts)
    ]


def rows_in(batch: Batch, contexts: frozenset[int]) -> NDArray[np.int64]:
    """The ranges in these contexts."""
    if not contexts:
        return np.zeros(0, np.int64)
    which = bytes([index in contexts for index in range(len(batch.contexts))])
    rows: NDArray[np.int64] = np.frombuffer(_native.ranges_in(batch, which, _RANGE), np.int64)
    return rows


def rows_by_root(batch: Batch, rows: NDArray[np.int64]) -> RootRows:
    """What the rows that belong to traces of our own tell about their roots."""
    roots, first, counts = groups(batch.root[rows])
    top = rows[batch.parent[rows] == 0]
    steps = rows[is_in(batch.name[rows], _step_names(batch, rows))]
    calls = rows[(batch.source[rows] == EventSource.MODULE) & ~is_in(rows, steps)]
    evaluated = (batch.flags[calls] & np.uint32(EventFlag.EVALUATION)) != 0
    return RootRows(
        spans=dict(zip(roots.tolist(), counts.tolist(), strict=True)),
        first_row=dict(zip(roots.tolist(), rows[first].tolist(), strict=True)),
        ends=dict(zip(batch.event_id[top].tolist(), batch.end_ns[top].tolist(), strict=True)),
        stepped=set(batch.root[steps].tolist()),
        trained=set(batch.root[calls[~evaluated]].tolist()),
        evaluated=set(batch.root[calls[evaluated]].tolist()),
        training_threads={batch.tracks[index] for index in distinct(batch.thread[steps]).tolist()},
    )


def _step_names(batch: Batch, rows: NDArray[np.int64]) -> list[int]:
    return [name for name in distinct(batch.name[rows]).tolist() if batch.names[name].startswith(OPTIMIZER_STEP)]
