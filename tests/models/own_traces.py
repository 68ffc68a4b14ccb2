"""Traces of ours, one range after the other: which are one trace, which are recorded, and when they
are complete. ``native/stage/own_traces.hpp`` and ``sinks/spans/step_traces.py`` do the same for a
batch at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_recfn.model.batch import Opened, TrainingStep
from otel_recfn.model.events import (
    IDLE_NS,
    LONGEST_TRACE_NS,
    MAX_TRACE_RANGES,
    SHORT_IDLE_NS,
    SOURCES,
    EventFlag,
    EventSource,
)
from otel_recfn.sinks.spans.root_limiter import RootLimiter


@dataclass(eq=False)
class Trace:
    """A trace, recorded or refused."""

    first: int
    thread: int
    is_training: bool
    is_bounded: bool
    is_marked: bool
    is_recorded: bool
    start_ns: int
    end_ns: int
    number: int = -1
    ranges: int = 0
    open: set[int] = field(default_factory=set)
    is_over: bool = False
    is_complete: bool = False

    def includes(self, begin: Opened) -> bool:
        """Whether a range that begins in its thread belongs to it."""
        if self.is_marked or begin.flags & EventFlag.BEGINS_STEP or begins_trace(begin):
            return False
        length_ns = begin.start_ns - self.start_ns
        is_long = self.is_bounded and length_ns > LONGEST_TRACE_NS
        idle_ns = SHORT_IDLE_NS if self.is_bounded else IDLE_NS
        is_idle = not self.open and begin.start_ns - self.end_ns > idle_ns
        is_full = self.ranges >= MAX_TRACE_RANGES
        return length_ns >= 0 and not (is_long or is_full or is_idle)


@dataclass(eq=False)
class Thread:
    """A thread of the program's."""

    current: Trace | None = None
    before: Trace | None = None
    """A training step that waits for its number."""
    has_trained: bool = False
    trains: bool = False
    was_cut: bool = False


class Model:
    """All traces of a program whose sampler takes all."""

    def __init__(self, roots_per_second: float | None) -> None:
        self.limiter = RootLimiter(roots_per_second)
        self.evaluation_limiter = RootLimiter(roots_per_second)
        self.threads: dict[int, Thread] = {}
        self.traces: dict[int, Trace] = {}
        """By the event ids of their outermost ranges."""
        self.complete: list[Trace] = []

    def advance(
        self, begins: list[Opened], ends: Mapping[int, int], steps: list[TrainingStep]
    ) -> None:
        """Take in a batch: begins in order, and when which ranges ended."""
        for event_id in ends.keys() & self.traces.keys():
            self.close(event_id, ends[event_id])
        for begin in begins:
            self.open(begin)
            if begin.event_id in ends:
                self.close(begin.event_id, ends[begin.event_id])
        for step in steps:
            self.end_step(step)

    def open(self, begin: Opened) -> None:
        thread = self.threads.setdefault(begin.thread, Thread())
        trace = thread.current
        if trace is None or not trace.includes(begin):
            self.end_trace(thread)
            trace = thread.current = self.new_trace(begin, thread)
        trace.open.add(begin.event_id)
        trace.ranges += 1
        self.traces[begin.event_id] = trace

    def new_trace(self, begin: Opened, thread: Thread) -> Trace:
        trains = thread.trains and begin.source != EventSource.STEP
        if begin.source == EventSource.MODULE:
            trains = not is_evaluation(begin)
        trains = trains or bool(begin.flags & EventFlag.BEGINS_STEP)
        apart = thread.has_trained and is_evaluation(begin)
        limiter = self.evaluation_limiter if apart else self.limiter
        is_recorded = (thread.was_cut and trains) or limiter.admit(begin.start_ns)
        thread.trains, thread.was_cut = trains, False
        thread.has_trained = thread.has_trained or trains
        return Trace(
            begin.event_id,
            begin.thread,
            is_training=trains,
            is_bounded=not (trains or SOURCES[begin.source].begins_traces),
            is_marked=begin.source == EventSource.STEP,
            is_recorded=is_recorded,
            start_ns=begin.start_ns,
            end_ns=begin.start_ns,
        )

    def close(self, event_id: int, end_ns: int) -> None:
        trace = self.traces[event_id]
        trace.open.discard(event_id)
        if not trace.is_complete:
            trace.end_ns = max(trace.end_ns, end_ns)
        if trace.is_over and not trace.open:
            thread = self.threads[trace.thread]
            if trace is not thread.before:
                self.finish(trace)

    def end_trace(self, thread: Thread) -> None:
        trace, thread.current = thread.current, None
        if trace is None:
            return
        trace.is_over = True
        self.give_out_before(thread)
        if trace.is_training and trace.number < 0:
            thread.before = trace
        elif not trace.open:
            self.finish(trace)

    def give_out_before(self, thread: Thread) -> None:
        trace, thread.before = thread.before, None
        if trace is not None and not trace.open:
            self.finish(trace)

    def finish(self, trace: Trace) -> None:
        if trace.is_recorded and not trace.is_complete:
            self.complete.append(trace)
        trace.is_complete = True

    def end_step(self, step: TrainingStep) -> None:
        first = self.traces[step.first]
        last = self.traces[step.last]
        if first.number < 0:
            first.number = step.number
        last.number = step.number
        last.end_ns = max(last.end_ns, step.end_ns)
        thread = self.threads[last.thread]
        if thread.before in (first, last):
            self.give_out_before(thread)

    def close_idle(self, now_ns: int) -> None:
        for thread in self.threads.values():
            trace = thread.current
            if trace is not None and not trace.open and abs(now_ns - trace.end_ns) > IDLE_NS:
                self.end_trace(thread)
            if thread.current is None:
                self.give_out_before(thread)

    def end_closed(self) -> None:
        for thread in self.threads.values():
            trace = thread.current
            if trace is not None and not trace.open:
                thread.was_cut = trace.is_training and trace.number < 0 and trace.is_recorded
                self.end_trace(thread)
            self.give_out_before(thread)

    def close_all(self) -> None:
        for thread in self.threads.values():
            self.end_trace(thread)
            self.give_out_before(thread)
        for trace in self.traces.values():
            self.finish(trace)


def is_evaluation(begin: Opened) -> bool:
    """Whether it is a module call that is no part of training."""
    return bool(begin.flags & EventFlag.EVALUATION)


def begins_trace(begin: Opened) -> bool:
    """Whether it has a trace of its own, whatever was before it."""
    return SOURCES[begin.source].begins_traces and (
        begin.source != EventSource.MODULE or is_evaluation(begin)
    )
