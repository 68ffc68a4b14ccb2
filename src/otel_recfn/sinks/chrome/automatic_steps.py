"""Training steps that nobody marked, as slices ``ProfilerStep#<n>``, by which readers find iterations.

    thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[val]─[val]───[fwd]─[loss]─ ...      top-level ranges, in order
             └──────── ProfilerStep#0 ─────────┘                 └── the next one

A step ends with an optimizer's step, or with the last of several in a row. It begins with the first range after the step before
it, after a second in which nothing ran, or with the range by which training goes on after modules were called outside of it.
Where the program has steps of its own (``step``, ``profile().step()``, those of ``torch.profiler``), nothing is added.

Spans of the program's are slices, too (``span_slices.py``). If the current span changes before anything is trained, the step
begins anew, so that it is inside its epoch's, say. After a later change it gets a track of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef, Track
from otel_recfn.model.events import OPTIMIZER, OPTIMIZER_STEP, OVERLAPPING, EventFlag, EventKind, EventSource

STEP_NAME = "ProfilerStep"
IDLE_NS = 1_000_000_000
MOST_ROOTS = 1000
"""The open top-level ranges for which it is remembered what optimizers and modules did in them."""
MOST_THREADS = 256
Bools = NDArray[np.bool_]
Ids = NDArray[np.uint64]
NO_IDS: Ids = np.zeros(0, np.uint64)
Values = TypeVar("Values", NDArray[np.bool_], NDArray[np.int64], NDArray[np.uint64])


class StepSlice(NamedTuple):
    """A step of a thread, as a slice."""

    number: int
    track: Track
    start_ns: int
    end_ns: int
    nests: bool
    """Whether it nests in the slices of its thread. If not, it needs a track of its own."""

    @property
    def name(self) -> str:
        """The name that torch.profiler gives its steps."""
        return f"{STEP_NAME}#{self.number}"


class _Thread(NamedTuple):
    """A stretch of a thread's top-level ranges, as far as it has come, which may become a step."""

    track: Track
    start_ns: int = 0
    end_ns: int = -IDLE_NS - 1
    """The end of its last range; a rest before the first."""
    trained: bool = False
    """Whether modules were called in training in it, or optimizers worked."""
    trains: bool = False
    """Whether an optimizer has stepped in it."""
    stepped_last: bool = False
    """Whether an optimizer stepped in its last range."""
    is_marked: bool = False
    """Whether it is a step of the program's own."""
    evaluates: bool = False
    """Whether modules were called outside of training, and nothing has been trained since."""
    context: SpanContextRef = NO_CONTEXT
    """The context of its last range."""
    nests: bool = True
    """Whether all of its ranges have that context."""
    last: int = 0
    """The event id of its last range."""
    number: int = 0

    def step(self, next_ns: int | None, following: SpanContextRef = NO_CONTEXT) -> StepSlice:
        """The stretch as a step, a nanosecond longer than its ranges if it can be, so that readers draw it around them.

        It can't where another span is current next, whose slice may begin where the last range ends.
        """
        end_ns = self.end_ns + 1 if next_ns is None else max(self.end_ns, min(self.end_ns + 1, next_ns))
        end_ns = end_ns if following == self.context else self.end_ns
        return StepSlice(self.number, self.track, self.start_ns, end_ns, self.nests)


class _Roots(NamedTuple):
    """Top-level ranges that haven't ended, by what happened in them. A range may be in several sets."""

    stepped: Ids = NO_IDS
    """Ranges in which an optimizer has stepped."""
    trained: Ids = NO_IDS
    """Ranges in which an optimizer worked, or modules were called in training."""
    evaluated: Ids = NO_IDS
    """Ranges in which modules were called outside of training."""

    def after(self, batch: Batch) -> _Roots:
        """The sets after the rows of a batch."""
        evaluated = (batch.flags & np.uint32(EventFlag.EVALUATION)) != 0
        is_call = (batch.source == EventSource.MODULE) & ~evaluated
        trained = is_call | is_in(batch.name, _named(batch, OPTIMIZER))
        calls = is_in(batch.name, _named(batch, OPTIMIZER_STEP)), trained, evaluated
        return _Roots(*[distinct(np.concatenate((ids, batch.root[rows]))) for ids, rows in zip(self, calls, strict=True)])

    def without(self, batch: Batch) -> _Roots:
        """The sets without the ranges that ended with the batch."""
        return _Roots(*[ids[~is_in(ids, batch.event_id)][-MOST_ROOTS:] for ids in self])

    def are_among(self, ids: Ids) -> tuple[Bools, Bools, Bools]:
        """Masks of the ids in which optimizers stepped, training was done, and only evaluation was done."""
        trained = is_in(ids, self.trained)
        return is_in(ids, self.stepped), trained, is_in(ids, self.evaluated) & ~trained


NO_ROOTS = _Roots()


class AutomaticSteps:
    """The steps of all threads, worked out batch by batch."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._roots = NO_ROOTS

    def add(self, batch: Batch) -> list[StepSlice]:
        """Add a batch. Returns the steps that have ended."""
        rows, over, roots = _top_level(batch), list[StepSlice](), self._roots.after(batch)
        for index in distinct(batch.thread[rows]).tolist():
            track = batch.tracks[index]
            thread = self._threads.pop(track.number, None) or _Thread(track)
            self._threads[track.number] = _after_rows(thread, batch, rows[batch.thread[rows] == index], roots, over)
        self._threads = dict(list(self._threads.items())[-MOST_THREADS:])
        self._roots = roots.without(batch)
        return over

    def open(self) -> list[StepSlice]:
        """The steps that haven't ended, as they are so far."""
        return [thread.step(None) for thread in self._threads.values() if thread.trains]


def _after_rows(thread: _Thread, batch: Batch, rows: NDArray[np.int64], roots: _Roots, over: list[StepSlice]) -> _Thread:
    """A thread after more of its top-level ranges, in the order of their ends.

    One that began before the one before it is around it, with a span of the program's in between.
    """
    around = batch.event_id[rows] < _shifted(thread.last, batch.event_id[rows])
    thread, marked = thread._replace(last=int(batch.event_id[rows[-1]])), _are_marked(batch, rows)
    chosen = marked | ~around
    rows, around, marked = rows[chosen], around[chosen], marked[chosen]
    if not len(rows):
        return thread
    starts, ends, context = batch.start_ns[rows], batch.end_ns[rows], batch.context[rows]
    stepped, trained, evaluated = roots.are_among(batch.event_id[rows])
    stepped &= ~marked
    after_step, after_marked = _shifted(thread.stepped_last, stepped), _shifted(thread.is_marked, marked)
    rests = starts - _shifted(thread.end_ns, ends) > IDLE_NS
    calls = np.flatnonzero(trained | evaluated)
    resumes = calls[trained[calls] & _shifted(thread.evaluates, evaluated[calls])]
    begins = {*np.flatnonzero((after_step & ~stepped) | marked | after_marked | rests).tolist(), *resumes.tolist()}
    changes = np.flatnonzero(np.diff(context)) + 1
    for first, last in pairwise(sorted({0, *begins, *changes.tolist(), len(rows)})):
        current, start_ns = batch.contexts[context[first]], int(starts[first])
        if first in begins or (current != thread.context and not thread.trained):
            is_step = thread.trains and not around[first]  # else the program has marked what is around it
            if is_step:
                over.append(thread.step(start_ns, current))
            number = thread.number + is_step
            thread = _Thread(thread.track, start_ns, context=current, last=thread.last, number=number)
        has_trained = thread.trained or bool(trained[first:last].any())
        trains, nests = thread.trains or bool(stepped[first:last].any()), thread.nests and thread.context == current
        thread = thread._replace(end_ns=int(ends[last - 1]), trained=has_trained, trains=trains, context=current, nests=nests)
    evaluates = bool(evaluated[calls[-1]]) if len(calls) else thread.evaluates
    return thread._replace(stepped_last=bool(stepped[-1]), is_marked=bool(marked[-1]), evaluates=evaluates)


def _shifted(before: int, values: Values) -> Values:
    """The values shifted by one place."""
    return np.concatenate((np.array([before], dtype=values.dtype), values[:-1]))


def _top_level(batch: Batch) -> NDArray[np.int64]:
    """The rows of threads' own ranges that have no range around them."""
    is_slice = (batch.kind == EventKind.RANGE) & ((batch.flags & OVERLAPPING) == 0) & (batch.thread == batch.end_thread)
    return np.flatnonzero(is_slice & (batch.parent == 0))


def _named(batch: Batch, beginning: str) -> list[int]:
    return [index for index, name in enumerate(batch.names) if name.startswith(beginning)]


def _are_marked(batch: Batch, rows: NDArray[np.int64]) -> Bools:
    marked: Bools = (batch.source[rows] == EventSource.STEP) | is_in(batch.name[rows], _named(batch, f"{STEP_NAME}#"))
    return marked
