"""The wall time of a recording: how much of it threads spent in ranges, and how much outside.

    block   ├──────────────────────────────────────────────────────────┤   the wall time
    step    ├──── train#0 ─────────┤├──── train#1 ─────────────────────┤   only divides it
    thread  ───[ aten::mm ]─────────────[ load ]──[ aten::mm ]──────────   recorded in the brackets,
                                                                           outside between them

A thread is recorded while one of its ranges is open, also one of the program's own. A step says
when a part of the program ran and not what did, so that the time in it that no other range covers
is outside. Ranges that overlap others don't count: their thread may do anything while they are
open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.busy_time import BusyTime
from otel_recfn.batches.number_sets import Indices, distinct, equals
from otel_recfn.batches.sampled_functions import SampledFunction, sampled_functions
from otel_recfn.batches.text_tables import MAX_CELL_CHARS, time_text
from otel_recfn.model.batch import Batch, Sample
from otel_recfn.model.columns import Track
from otel_recfn.model.events import (
    INT64,
    OVERLAPPING,
    PROFILER_STEP,
    EventSource,
    RowKind,
)
from otel_recfn.support.safe_texts import visible

Mask = NDArray[np.bool_]
TimeText = Callable[[float], str]
OUTSIDE = "outside PyTorch"
"""The name of the time outside of ranges."""
MAX_FUNCTIONS = 5
"""The maximum number of sampled functions of a thread in a sentence, or below its row."""
MIN_RECORDED = 0.5
"""The minimum share of the wall time that a thread without steps is recorded, if its time outside
is reported: a thread that ran less may only have waited for work, as in a pool.
"""


class Block(NamedTuple):
    """The part of a program that a profile recorded."""

    start_ns: int
    """The begin and the end, in Unix nanoseconds."""
    end_ns: int
    thread: int = 0
    """The operating system's id of the thread that began it; 0 if it isn't known."""
    thread_name: str = ""
    end_thread: int = 0
    """The operating system's id of the thread that ended it; 0 if it isn't known or over."""


class StepTime(NamedTuple):
    """How a thread spent a step."""

    name: str
    """With its number, such as ``train#3``."""
    wall_ns: int
    outside_ns: int
    start_ns: int = 0
    """In Unix nanoseconds."""


class _Step(NamedTuple):
    """A step of a thread, in Unix nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


class ThreadTime(NamedTuple):
    """How a thread spent the wall time."""

    name: str
    label: str
    """The name of the thread in ``tree("thread")``; empty if it has no ranges."""
    wall_ns: int
    outside_ns: int
    steps: list[StepTime]
    between_steps_ns: int = 0
    """The part of ``outside_ns`` that is in no step."""
    functions: Sequence[SampledFunction] = ()
    """The Python functions that samples found in the time outside, the longest first."""

    @property
    def recorded_ns(self) -> int:
        """The time in which one of its ranges was open."""
        return self.wall_ns - self.outside_ns

    def sentences(self, time_in: TimeText) -> list[str]:
        """What is reported of the thread: how much was recorded, and of the steps."""
        if not self.wall_ns:
            return []
        outside = self.outside_ns / self.wall_ns
        found = [
            f"{self.name}: {1 - outside:.1%} recorded, {outside:.1%}"
            f" ({time_in(self.outside_ns / 1000)}) {OUTSIDE}."
        ]
        if self.functions:
            found.append(self._functions_sentence())
        if self.steps:
            found.append(self._steps_sentence(time_in))
        return found

    def _functions_sentence(self) -> str:
        functions = [
            f"{_short(each.name)} {each.time * 1000 / self.wall_ns:.1%}"
            for each in self.functions[:MAX_FUNCTIONS]
        ]
        return f"Sampled {OUTSIDE} in {self.name}: {', '.join(functions)}."

    def _steps_sentence(self, time_in: TimeText) -> str:
        most = max(self.steps, key=lambda step: step.outside_ns)
        wall_us, outside_us = (
            sum(times) / len(self.steps) / 1000
            for times in zip(*[(step.wall_ns, step.outside_ns) for step in self.steps], strict=True)
        )
        return (
            f"{len(self.steps):,} steps in {self.name}: {time_in(wall_us)} each on average,"
            f" {time_in(outside_us)} of it {OUTSIDE}; most in {most.name},"
            f" {time_in(most.outside_ns / 1000)} of {time_in(most.wall_ns / 1000)}."
            f" {time_in(self.between_steps_ns / 1000)} {OUTSIDE} is in no step."
        )


class Wall(NamedTuple):
    """The wall time of a recording."""

    ns: int
    threads: list[ThreadTime]
    """The thread that ran the block, and other threads that worked: those with steps, and those
    that are recorded for most of the time and don't work for other threads.
    """
    is_complete: bool = True
    """Whether no range was lost: the time of lost ones seems to be outside."""

    def sentences(self, time_in: TimeText = time_text) -> list[str]:
        """The wall time, and what each of the threads did in it.

        ``time_in`` makes texts of microseconds.
        """
        loss = "" if self.is_complete else f" Some ranges were lost: they count as {OUTSIDE}."
        found = [f"Wall time: {time_in(self.ns / 1000)}.{loss}"]
        for thread in self.threads:
            found += thread.sentences(time_in)
        return found


def wall_time(
    batch: Batch,
    block: Block | None = None,
    *,
    is_complete: bool = True,
    samples: Sequence[Sample] = (),
) -> Wall:
    """The wall time of a batch's ranges.

    Args:
        batch: the ranges.
        block: the block that was recorded. None: from the first begin of a range or step to the
            last end; the thread with the most steps, or with the most time in ranges, ran it.
        is_complete: whether no range was lost.
        samples: what threads ran in Python while they recorded nothing.
    """
    ranges = np.flatnonzero(equals(batch.kind, RowKind.RANGE) & equals(batch.device, 0))
    block = block or _extent(batch, ranges)
    counted = ranges[~is_step(batch)[ranges] & (batch.flags[ranges] & OVERLAPPING == 0)]
    times = _thread_times(batch, ranges, counted, block)
    functions = _functions_outside(batch, samples, block)
    for index, thread in times.items():
        number = batch.tracks[index].number
        times[index] = thread._replace(functions=functions.get(number, ()))
    main = _main_thread(batch, times, block)
    length_ns = max(block.end_ns - block.start_ns, 0)
    reported = []
    if main in times:
        reported.append(times[main])
    elif block.thread_name:
        name = _short(block.thread_name)
        reported.append(ThreadTime(name, "", wall_ns=length_ns, outside_ns=length_ns, steps=[]))
    own_work = _threads_with_own_work(batch, counted)
    for index, thread in times.items():
        if index != main and (thread.steps or (index in own_work and _is_busy(thread))):
            reported.append(thread)
    return Wall(length_ns, reported, is_complete)


def _extent(batch: Batch, ranges: Indices) -> Block:
    """The time from the first begin of these ranges, and of training steps, to the last end."""
    starts = [step.start_ns for step in batch.steps]
    ends = [step.end_ns for step in batch.steps]
    start_ns = min([int(batch.start_ns[ranges].min(initial=INT64.stop - 1)), *starts])
    return Block(start_ns, max([int(batch.end_ns[ranges].max(initial=start_ns)), *ends]))


def _functions_outside(
    batch: Batch, samples: Sequence[Sample], block: Block
) -> dict[int, list[SampledFunction]]:
    """The sampled functions of each thread in the time outside of ranges, by its number.

    A sample in a range of the program's is of that range's time, and a step is none.
    """
    steps = {*batch.event_id[is_step(batch)].tolist()}
    by_thread: dict[int, list[Sample]] = {}
    for sample in samples:
        is_outside = sample.parent == 0 or sample.parent in steps
        if is_outside and block.start_ns <= sample.time_ns <= block.end_ns:
            by_thread.setdefault(sample.thread.number, []).append(sample)
    return {number: sampled_functions(found) for number, found in by_thread.items()}


def is_step(batch: Batch) -> Mask:
    """Whether each row is a step, of ``step`` or of a profiler's schedule; what a device's lane
    has of it is none.
    """
    names = [name.startswith(PROFILER_STEP) for name in batch.names]
    by_profiler = np.take(np.array(names, np.bool_), batch.name)
    is_marked = equals(batch.source, EventSource.STEP) | by_profiler
    return np.asarray(is_marked & equals(batch.device, 0))


def thread_name(track: Track) -> str:
    """The name of a thread as Chrome traces and reports show it."""
    return track.name or f"thread {track.native_id or track.number}"


def thread_label(track: Track) -> str:
    """The name of a thread, with its number, as one name may be that of several threads."""
    return f"{track.name or 'thread'} {track.thread_id}"


def _short(name: str) -> str:
    """A name as a sentence has it: one line, without what would steer a terminal."""
    text = visible(name)
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 3] + "..."


def _is_busy(thread: ThreadTime) -> bool:
    return thread.recorded_ns >= MIN_RECORDED * thread.wall_ns


def _thread_times(
    batch: Batch, ranges: Indices, counted: Indices, block: Block
) -> dict[int, ThreadTime]:
    """The time of each thread that has ranges, by its index into the tracks."""
    steps = _steps(batch, ranges, block)
    in_order = counted[np.argsort(batch.thread[counted], kind="stable")]
    thread = batch.thread[in_order].astype(np.int64)
    times = {}
    for index in distinct(batch.thread[ranges].astype(np.int64)).tolist():
        first, last = np.searchsorted(thread, [index, index + 1]).tolist()
        rows = in_order[first:last]
        times[index] = _thread_time(batch.tracks[index], batch, rows, steps.get(index, []), block)
    return times


def _main_thread(batch: Batch, times: dict[int, ThreadTime], block: Block) -> int:
    """The thread that ran the block, as an index into the tracks; -1 if it has no ranges."""
    if block.thread:
        native_ids = {batch.tracks[index].native_id: index for index in times}
        return native_ids.get(block.thread, -1)

    def rank(index: int) -> tuple[int, int]:
        return len(times[index].steps), times[index].recorded_ns

    return max(times, key=rank, default=-1)


def _threads_with_own_work(batch: Batch, counted: Indices) -> set[int]:
    """The threads with a range that lies in no other: all that others do is for another thread."""
    own = counted[(batch.parent[counted] == 0)]
    return {*distinct(batch.thread[own].astype(np.int64)).tolist()}


def _thread_time(
    track: Track, batch: Batch, rows: Indices, steps: Sequence[_Step], block: Block
) -> ThreadTime:
    """The time of a thread, given its ranges that count."""
    busy = BusyTime(batch.start_ns[rows], batch.end_ns[rows])
    starts = np.array([block.start_ns, *[step.start_ns for step in steps]], np.int64)
    ends = np.maximum(np.array([block.end_ns, *[step.end_ns for step in steps]], np.int64), starts)
    walls = ends - starts
    outside = walls - busy.time_during(starts, ends)
    length_ns, *step_lengths = walls.tolist()
    outside_ns, *step_outside = outside.tolist()
    names = [step.name for step in steps]
    all_starts = np.append(batch.start_ns[rows], starts[1:])
    all_ends = np.append(batch.end_ns[rows], ends[1:])
    in_any = BusyTime(all_starts, all_ends).time_during(starts[:1], ends[:1])
    return ThreadTime(
        _short(thread_name(track)),
        thread_label(track),
        wall_ns=length_ns,
        outside_ns=outside_ns,
        steps=list(map(StepTime, names, step_lengths, step_outside, starts[1:].tolist())),
        between_steps_ns=length_ns - int(in_any[0]),
    )


def _steps(batch: Batch, ranges: Indices, block: Block) -> dict[int, list[_Step]]:
    """The steps of each thread, by begin, as far as they are in the block."""
    found = [
        (step.thread, _Step(f"{PROFILER_STEP}{step.number}", step.start_ns, step.end_ns))
        for step in batch.steps
        if not step.is_marked
    ]
    for row in ranges[is_step(batch)[ranges]].tolist():
        name = batch.names[batch.name[row]]
        number = int(batch.step_number[row])
        name = name if number < 0 else f"{name}#{number}"
        step = _Step(name, int(batch.start_ns[row]), int(batch.end_ns[row]))
        found.append((int(batch.thread[row]), step))
    steps: dict[int, list[_Step]] = {}
    for thread, step in sorted(found, key=lambda each: each[1].start_ns):
        start_ns = max(step.start_ns, block.start_ns)
        end_ns = min(step.end_ns, block.end_ns)
        steps.setdefault(thread, []).append(_Step(_short(step.name), start_ns, end_ns))
    return steps
