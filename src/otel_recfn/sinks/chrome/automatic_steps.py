"""Training steps that nobody marked, as slices ``ProfilerStep#<n>``, by which readers find iterations.

    thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[fwd]─[loss]─ ...      top-level ranges, in order
             └──────── ProfilerStep#0 ─────────┘   └── the next one

A step ends with an optimizer's step, or with the last of several in a row. It begins with the first range after the step before
it, after a second in which nothing ran, or in another span of the program's than the range before, so that it nests in spans.
Where the program has steps of its own (``step``, ``profile().step()``, those of ``torch.profiler``), nothing is added.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef, Track
from otel_recfn.model.events import OPTIMIZER_STEP, OVERLAPPING, EventSource, RowKind

STEP_NAME = "ProfilerStep"
IDLE_NS = 1_000_000_000
MOST_THREADS = 256
Bools = NDArray[np.bool_]
Ids = NDArray[np.uint64]
Values = TypeVar("Values", NDArray[np.bool_], NDArray[np.int64])


class StepSlice(NamedTuple):
    """A step of a thread, as a slice."""

    number: int
    track: Track
    start_ns: int
    end_ns: int

    @property
    def name(self) -> str:
        """The name that torch.profiler gives its steps."""
        return f"{STEP_NAME}#{self.number}"


class _Thread(NamedTuple):
    """A stretch of a thread's top-level ranges, as far as it has come, which is a step once an optimizer has stepped."""

    track: Track
    number: int = 0
    start_ns: int = 0
    end_ns: int = 0
    has_stepped: bool = False
    """Whether an optimizer has stepped in it."""
    is_over: bool = False
    """Whether an optimizer stepped in its last range, or that is a step of the program's own."""
    context: SpanContextRef = NO_CONTEXT
    seen_ns: int = -IDLE_NS - 1
    """The end of the thread's last range; a rest before the first."""

    def step(self, longer: bool) -> StepSlice:
        """The stretch as a step; where it can be, a nanosecond longer than its ranges, so that readers draw it around them."""
        return StepSlice(self.number, self.track, self.start_ns, self.end_ns + longer)


class AutomaticSteps:
    """The steps of all threads, worked out batch by batch."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._stepped: Ids = np.zeros(0, np.uint64)
        """The open top-level ranges in which an optimizer has stepped."""

    def add(self, batch: Batch) -> list[StepSlice]:
        """Add a batch. Returns the steps that have ended."""
        over = list[StepSlice]()
        is_slice = (
            (batch.kind == RowKind.RANGE)
            & ((batch.flags & OVERLAPPING) == 0)
            & (batch.thread == batch.end_thread)
        )
        rows = np.flatnonzero(is_slice & (batch.parent == 0))
        optimizers = is_in(batch.name, _named(batch, OPTIMIZER_STEP))
        stepped = distinct(np.concatenate((self._stepped, batch.root[optimizers])))
        for index in distinct(batch.thread[rows]).tolist():
            track = batch.tracks[index]
            thread = self._threads.pop(track.number, None) or _Thread(track)
            self._threads[track.number] = _after_rows(
                thread, batch, rows[batch.thread[rows] == index], stepped, over
            )
        self._threads = dict(list(self._threads.items())[-MOST_THREADS:])
        self._stepped = stepped[~is_in(stepped, batch.event_id)]
        return over

    def open(self) -> list[StepSlice]:
        """The steps that haven't ended, as they are so far."""
        return [thread.step(longer=True) for thread in self._threads.values() if thread.has_stepped]


def _after_rows(
    thread: _Thread, batch: Batch, rows: NDArray[np.int64], roots: Ids, over: list[StepSlice]
) -> _Thread:
    """A thread after more of its top-level ranges, in the order of their ends. In ``roots`` an optimizer has stepped.

    A range around the one before it, with a span of the program's in between, counts only if the program marks a step by it.
    """
    around = batch.start_ns[rows] < _shifted(thread.seen_ns, batch.end_ns[rows])
    marked = (batch.source[rows] == EventSource.STEP) | is_in(
        batch.name[rows], _named(batch, f"{STEP_NAME}#")
    )
    seen_ns, chosen = int(batch.end_ns[rows[-1]]), marked | ~around
    rows, around, marked = rows[chosen], around[chosen], marked[chosen]
    if not len(rows):
        return thread._replace(seen_ns=seen_ns)
    starts, ends, context = batch.start_ns[rows], batch.end_ns[rows], batch.context[rows]
    stepped = is_in(batch.event_id[rows], roots) & ~marked
    begins = marked | (_shifted(thread.is_over, stepped | marked) & ~stepped)
    begins |= starts - _shifted(thread.seen_ns, ends) > IDLE_NS
    begins[1:] |= context[1:] != context[:-1]
    begins[0] |= batch.contexts[context[0]] != thread.context
    for first, last in pairwise([*sorted({0, *np.flatnonzero(begins).tolist()}), len(rows)]):
        if begins[first]:
            current, start_ns, number = (
                batch.contexts[context[first]],
                int(starts[first]),
                thread.number,
            )
            if thread.has_stepped and not around[first]:
                over.append(
                    thread.step(longer=current == thread.context and start_ns > thread.end_ns)
                )
                number += 1
            thread = _Thread(thread.track, number, start_ns, context=current)
        has_stepped = thread.has_stepped or bool(stepped[first:last].any())
        thread = thread._replace(end_ns=int(ends[last - 1]), has_stepped=has_stepped)
    return thread._replace(is_over=bool(stepped[-1] | marked[-1]), seen_ns=seen_ns)


def _shifted(before: int, values: Values) -> Values:
    """The values shifted by one place."""
    return np.concatenate((np.array([before], dtype=values.dtype), values[:-1]))


def _named(batch: Batch, beginning: str) -> list[int]:
    return [index for index, name in enumerate(batch.names) if name.startswith(beginning)]
