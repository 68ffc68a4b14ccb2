"""Training steps that nobody marked, as slices ``ProfilerStep#<n>`` around what ran in them, by which readers find iterations.

    thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[fwd]─[loss]─ ...      top-level ranges, in order
             └──────── ProfilerStep#0 ─────────┘   └── the next one

A step ends with an optimizer's step, or with the last of several in a row. It begins with the first range after the step before
it, or after a second in which nothing ran. Where the program has steps of its own (``step``, ``profile().step()``, those of
``torch.profiler``), or works in spans of its own, which say what a step is, nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import OVERLAPPING, EventKind, EventSource

OPTIMIZER_STEP = "Optimizer.step#"
STEP_NAME = "ProfilerStep"
IDLE_NS = 1_000_000_000
MOST_ROOTS = 1000
"""So many top-level ranges that an optimizer has stepped in are known while they are open."""
MOST_THREADS = 256
Bools = NDArray[np.bool_]
Values = TypeVar("Values", NDArray[np.bool_], NDArray[np.int64])


class StepSlice(NamedTuple):
    """A step of a thread."""

    name: str
    track: Track
    start_ns: int
    end_ns: int


class _Thread(NamedTuple):
    """A thread's stretch of top-level ranges that may become a step, as far as it has come."""

    track: Track
    start_ns: int = 0
    end_ns: int = -IDLE_NS - 1
    """As long ago as a rest where nothing ran yet."""
    trains: bool = False
    """An optimizer has stepped in it."""
    stepped_last: bool = False
    """That was in its last range."""
    is_marked: bool = False
    """It is a step of the program's own."""
    number: int = 0

    def step(self, next_ns: int | None) -> StepSlice:
        """The stretch as a step: a nanosecond longer than its ranges where it can be, so that readers draw it around them."""
        end_ns = self.end_ns + 1 if next_ns is None else max(self.end_ns, min(self.end_ns + 1, next_ns))
        return StepSlice(f"{STEP_NAME}#{self.number}", self.track, self.start_ns, end_ns)


class AutomaticSteps:
    """What is known of them; replaced, never changed."""

    def __init__(
        self, threads: Mapping[int, _Thread] = MappingProxyType({}), stepped: NDArray[np.uint64] | None = None
    ) -> None:
        self._threads = threads
        self._stepped = np.zeros(0, np.uint64) if stepped is None else stepped
        """Top-level ranges in which an optimizer has stepped, and which hadn't ended."""

    def after(self, batch: Batch) -> tuple[AutomaticSteps, list[StepSlice]]:
        """What is known after a batch, and the steps that are over."""
        stepped = np.concatenate((self._stepped, batch.root[is_in(batch.name, _optimizers(batch))]))
        rows, threads, over = _top_level(batch), dict(self._threads), list[StepSlice]()
        for index in distinct(batch.thread[rows]).tolist():
            own, track = rows[batch.thread[rows] == index], batch.tracks[index]
            own = own[np.argsort(batch.event_id[own], kind="stable")]
            thread = threads.pop(track.number, None) or _Thread(track)
            threads[track.number] = _after_rows(thread, batch, own, is_in(batch.event_id[own], stepped), over)
        waiting = distinct(stepped[~is_in(stepped, batch.event_id)])
        return AutomaticSteps(dict(list(threads.items())[-MOST_THREADS:]), waiting[-MOST_ROOTS:]), over

    def open(self) -> list[StepSlice]:
        """The steps that are not over, as they are so far."""
        return [thread.step(None) for thread in self._threads.values() if thread.trains]


def _after_rows(thread: _Thread, batch: Batch, rows: NDArray[np.int64], stepped: Bools, over: list[StepSlice]) -> _Thread:
    """A thread after more of its top-level ranges, in the order of their begins."""
    starts, ends, marked = batch.start_ns[rows], batch.end_ns[rows], _are_marked(batch, rows)
    stepped &= ~marked
    after_step, after_marked = _shifted(thread.stepped_last, stepped), _shifted(thread.is_marked, marked)
    rests = starts - _shifted(thread.end_ns, ends) > IDLE_NS
    begins = np.flatnonzero((after_step & ~stepped) | marked | after_marked | rests).tolist()
    for first, last in zip([0, *begins], [*begins, len(rows)], strict=True):
        if first in begins:
            if thread.trains:
                over.append(thread.step(int(starts[first])))
            thread = thread._replace(start_ns=int(starts[first]), trains=False, number=thread.number + thread.trains)
        if first < last:
            trains = thread.trains or bool(stepped[first:last].any())
            thread = thread._replace(end_ns=int(ends[last - 1]), trains=trains)
    return thread._replace(stepped_last=bool(stepped[-1]), is_marked=bool(marked[-1]))


def _shifted(before: int, values: Values) -> Values:
    """Of each the one before it."""
    return np.concatenate((np.array([before], dtype=values.dtype), values[:-1]))


def _top_level(batch: Batch) -> NDArray[np.int64]:
    """The threads' own ranges that lie in no other one, nor in a span."""
    in_no_span = [index for index, ref in enumerate(batch.contexts) if not ref.span_id]
    threads = [index for index, track in enumerate(batch.tracks) if track.is_thread]
    is_slice = (batch.kind == EventKind.RANGE) & ((batch.flags & OVERLAPPING) == 0) & (batch.thread == batch.end_thread)
    return np.flatnonzero(is_slice & (batch.parent == 0) & is_in(batch.context, in_no_span) & is_in(batch.thread, threads))


def _optimizers(batch: Batch) -> list[int]:
    return [index for index, name in enumerate(batch.names) if name.startswith(OPTIMIZER_STEP)]


def _are_marked(batch: Batch, rows: NDArray[np.int64]) -> Bools:
    names = [index for index, name in enumerate(batch.names) if name.startswith(f"{STEP_NAME}#")]
    marked: Bools = (batch.source[rows] == EventSource.STEP) | is_in(batch.name[rows], names)
    return marked
