"""The traces that we start for threads that work without any OpenTelemetry span: one for each
outermost step, else for each module call, else for what runs in the thread.

    a batch ──► _native.OwnTraces: a table of the traces that began, and the state of the others
                ├► RootLimiter, TraceRoots: which of them are recorded ──► StepTrace
                └► StepTrace: its end, its number ──► complete: the root span is sent

Outside of spans any operator may be an outermost range, hundreds of thousands a second, and few
traces are recorded (``roots_per_second``). So nothing is done in Python for each range, nor for
each trace: the refused ones of a batch are passed over at once, without a name, an id or an object.
That takes 12 to 20 ns of a row. When the trace of each range was looked for, it took 550, or 1,900
if each module call is a trace, and the drain 4 to 16 times as long.

Which ranges are one trace is said in ``native/stage/own_traces.hpp``. A thread's event ids count
up, so that two of them say which ranges a trace has, and rows find their root by bisection.

A trace and its name, with which the sampler is called, are decided when its first range begins,
because rows of ranges in that come before its own. The batch says which range begins a training
step (``BEGINS_STEP`` of an announced range), and when a step is over (``Batch.steps``). A
``training step`` in which no optimizer stepped, since validation or nothing came after it, has no
number.

A trace's root span is ours. It is published once the trace is over and all its ranges have ended.
That of a worker process waits until the trace has lasted a millisecond: what begins after a shorter
one has the same root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn import _native
from otel_recfn.batches.number_sets import groups, is_in
from otel_recfn.batches.outcomes import are_rootless
from otel_recfn.batches.stage import OwnRoot, Table, asked_table, find_root, records, typed_table
from otel_recfn.model.batch import Batch, Track, TrainingStep
from otel_recfn.model.events import (
    IDLE_NS,
    LONGEST_TRACE_NS,
    ORDINAL_BITS,
    SHORT_IDLE_NS,
    SOURCES,
    EventFlag,
    EventSource,
    trace_name,
)
from otel_recfn.sinks.spans.process_context import ProcessContext
from otel_recfn.sinks.spans.root_limiter import RootLimiter
from otel_recfn.sinks.spans.span_target import RootStart, SpanTarget
from otel_recfn.sinks.spans.step_trace import TRAINING, StepTrace
from otel_recfn.sinks.spans.trace_roots import TraceRoots

if TYPE_CHECKING:
    from otel_recfn._native import TraceState

MAX_REMEMBERED_TRACES = 256
"""The newest complete traces that are remembered, for ranges of other threads that come late."""


class TraceStart(NamedTuple):
    """The range with which a trace begins."""

    first: int
    """Its event id."""
    name: str = ""
    source: int = EventSource.TORCH
    flags: int = 0
    """Its EventFlag bits, with ``BEGINS_STEP`` if the trace is a training step's."""


def trace_start(root: int) -> TraceStart:
    """The begin of the trace that an open outermost range belongs to, of any thread; the range
    itself where the drain doesn't know it.
    """
    found = _native.trace_of(root, IDLE_NS, SHORT_IDLE_NS)
    return TraceStart(*found) if found is not None else TraceStart(root)


class StepTraces:
    """The traces that we start: outermost ranges, grouped per thread."""

    def __init__(
        self,
        roots_per_second: float | None,
        process_context: ProcessContext,
        trace_roots: TraceRoots | None = None,
    ) -> None:
        self._process_context = process_context
        self.limiter = RootLimiter(roots_per_second)
        """The limit of all traces that we start, but for evaluation in threads that train."""
        self._evaluation_limiter = RootLimiter(roots_per_second)
        """The limit of evaluation in threads that train. Validation has many more calls than an
        epoch has steps, so with one limit the steps would get no trace.
        """
        self._trace_roots = trace_roots or TraceRoots()
        sources = [source for source, traits in SOURCES.items() if traits.begins_traces]
        self._own_traces = _native.OwnTraces(begin_sources=sum(1 << source for source in sources))
        """All traces, with the refused ones."""
        self._recorded: dict[int, StepTrace] = {}
        """The recorded traces, by the event ids with which they begin, the oldest first."""
        self._roots: Sequence[OwnRoot] = ()
        """The roots of the recorded traces, in ascending order of these event ids."""
        self._followed: dict[int, StepTrace] = {}
        """The recorded traces that aren't complete, or after which no trace has begun in their
        thread.
        """
        self._unsent: dict[int, StepTrace] = {}
        """The recorded traces whose root spans aren't published, by the span ids of these."""
        self._cut: set[int] = set()
        """The threads in which a flush ended the recorded trace of a training step before its
        optimizer stepped.
        """
        self._newest: dict[int, StepTrace] = {}
        """The newest trace of each thread of a worker, by its number."""
        self._finished: list[StepTrace] = []
        """The traces whose root spans are published and not yet taken, each once."""

    def advance(self, batch: Batch, target: SpanTarget) -> Sequence[OwnRoot]:
        """Take in a batch: its announced begins, its rows, then its steps.

        The target is asked for each new trace that the limit admits.

        Returns:
            The roots of the recorded traces, for ``Stage.add``.
        """
        self._forget_oldest()
        outside = are_rootless(batch.contexts)
        began = typed_table(
            "new_trace",
            self._own_traces.advance(
                batch,
                outside=outside,
                asked=asked_table(self._trace_roots.asked()),
                idle_ns=IDLE_NS,
                short_idle_ns=SHORT_IDLE_NS,
            ),
        )
        for index in self._indices_to_start(began):
            self._start(began[index : index + 1], batch, target)
        live = typed_table("live_trace", self._own_traces.live())
        opened_ids = batch.opened.columns["event_id"]
        self._trace_roots.note_batch(opened_ids, began["first"], live.tolist())
        self._follow()
        self._roots = [
            OwnRoot(begin, trace.until, trace.context)
            for begin, trace in sorted(self._recorded.items())
        ]
        for step in batch.steps:
            if outside[step.context]:
                self._end_step(step)
        if batch.steps:
            self._follow()
        return self._roots

    def take_finished(self) -> list[StepTrace]:
        """Remove and return the traces that are complete."""
        finished, self._finished = self._finished, []
        return finished

    def find(self, root: int) -> StepTrace | None:
        """The recorded trace of the ranges below a root; None if there is none."""
        found = find_root(self._roots, root)
        return self._recorded.get(found.first) if found is not None else None

    def has_open(self, root: SpanContext) -> bool:
        """Whether it is the root of a trace that isn't complete."""
        return root.span_id in self._unsent

    def close_idle(self, now_ns: int) -> None:
        """End the traces of threads in which nothing ran in the second before ``now_ns``, or
        that a set clock left behind.
        """
        self._own_traces.end_idle(now_ns, IDLE_NS)
        self._follow()

    def end_closed(self) -> None:
        """End the traces in which nothing is open, so that a flush delivers them.

        What follows in a training step is a trace of its own then, which the limit doesn't count.
        """
        for trace in self._followed.values():
            state = self._own_traces.state(trace.begin)
            if state is not None and not state.is_over and not state.is_open:
                self._note_cut(trace)
        self._own_traces.end_closed()
        self._follow(flushes=True)

    def close_all(self) -> None:
        """End every trace now.

        Ranges that are still open come later, into a trace whose root span was sent, or never.
        """
        self._own_traces.end_all()
        self._follow()
        for trace in list(self._unsent.values()):
            self._publish(trace)

    def name(self, source: int, called: str, flags: int, thread_name: str) -> str:
        """The name of the trace that begins with an outermost range. From any thread.

        Args:
            source: the range's.
            called: the range's name.
            flags: the range's, with ``BEGINS_STEP`` if it is a training step's.
            thread_name: the thread's name.
        """
        if flags & EventFlag.BEGINS_STEP:
            return TRAINING
        return trace_name(source, called) or self._process_context.name(thread_name)

    def _indices_to_start(self, began: Table) -> Iterator[int]:
        """The indices of new traces that may be recorded, or that the program may ask about, in
        order. The others are refused.
        """
        must_be_decided = began["may_be_asked"] | self._trace_roots.are_decided(began["first"])
        if self._process_context.worker() is not None:  # the limit isn't for its traces
            must_be_decided[:] = True
        if self._cut:
            threads = groups(began["begin"] >> np.uint64(ORDINAL_BITS))
            must_be_decided[threads.first[is_in(threads.numbers, list(self._cut))]] = True
        index = 0
        while index < len(began):
            limiter = self._limiter_of(bool(began["is_evaluation"][index]))
            if must_be_decided[index] or limiter.admits(int(began["start_ns"][index])):
                yield index
                index += 1
            else:
                index = self._next_index(began, must_be_decided, index + 1)

    def _next_index(self, began: Table, must_be_decided: Table, index: int) -> int:
        """The first index, ``index`` or later, of a trace that the limit may admit or that must be
        decided; the table's length if there is none.

        It compares whole columns, because mostly the limit refuses thousands in a row.
        """
        rest = began[index:]
        admitted = np.where(
            rest["is_evaluation"],
            self._evaluation_limiter.may_admit(rest["start_ns"]),
            self.limiter.may_admit(rest["start_ns"]),
        )
        found = np.flatnonzero(admitted | must_be_decided[index:])
        return index + int(found[0]) if len(found) else len(began)

    def _limiter_of(self, is_evaluation: bool) -> RootLimiter:
        return self._evaluation_limiter if is_evaluation else self.limiter

    def _start(self, row: Table, batch: Batch, target: SpanTarget) -> None:
        """Decide on a trace that has begun. ``row`` is a table of this one alone."""
        [new] = records("new_trace", row)
        track, called, source, flags = _begin_of(new, batch)
        name = self.name(source, called, flags, track.name)
        before = self._short_before(new, name, track)
        start = self._trace_roots.decide(
            new.first,
            lambda: before.start if before else self._start_root(new, name, target),
        )
        self._cut.discard(track.number)
        if start is None:
            return
        trace = StepTrace(
            start,
            track,
            name=start.name,
            start_ns=new.start_ns,
            end_ns=new.start_ns,
            first=new.first,
            begin=new.begin,
            in_worker=self._process_context.worker() is not None,
            began_ns=new.start_ns,
        )
        if trace.in_worker:
            self._newest[track.number] = trace
        if before is not None and start is before.start:
            trace.continue_short(before)
        # A trace may continue after others have begun in its thread. Its root is sent once.
        trace.is_published = new.first != new.begin and any(
            other.first == new.first for other in self._recorded.values()
        )
        self._recorded[new.begin] = self._followed[new.begin] = trace
        if not trace.is_published:
            self._unsent[start.context.span_id] = trace

    def _short_before(self, new: Any, name: str, track: Track) -> StepTrace | None:
        """The trace before a new one in the thread of a worker, if it is over and too short to be
        sent by itself.
        """
        before = self._newest.get(track.number)
        if before is None or before.is_published or before.name != name:
            return None
        state = self._own_traces.state(before.begin)
        if state is None or state.is_open:
            return None
        before.end_ns = max(before.end_ns, state.end_ns)
        is_recent = new.start_ns - before.start_ns < LONGEST_TRACE_NS
        return before if before.is_too_short and is_recent else None

    def _start_root(self, new: Any, name: str, target: SpanTarget) -> RootStart | None:
        if name == TRAINING and new.begin >> ORDINAL_BITS in self._cut:
            return self._process_context.start_root(target, name)
        limiter = self._limiter_of(new.is_evaluation)
        # The limit is for all traces but those that continue a trace of the program's, which is
        # known only when the root has been started. Mostly the limit refuses, so it is asked
        # before: random ids take as long as everything else, and the GIL twice.
        if self._process_context.worker() is None and not limiter.admits(new.start_ns):
            return None
        start = self._process_context.start_root(target, name)
        if (
            start is not None
            and (start.parent is None or start.parent.is_remote)
            and not limiter.admit(new.start_ns)
        ):
            return None
        return start

    def _follow(self, *, flushes: bool = False) -> None:
        """Update the recorded traces, and publish those that are complete.

        Unless it flushes: a training step that is over waits for its number while the trace after
        it isn't over, because the drain waits for what comes after an optimizer's step; and a
        worker's trace that is too short waits for the next one.
        """
        for trace in list(self._followed.values()):
            state = self._own_traces.state(trace.begin)
            if state is None:  # its thread was forgotten, among very many
                self._publish(trace)
                self._cut.discard(trace.thread.number)
                del self._followed[trace.begin], self._recorded[trace.begin]
                continue
            trace.until = state.until
            if not trace.is_published:
                trace.end_ns = max(trace.end_ns, state.end_ns)
                if _is_complete(state) and (flushes or not self._waits(trace, state)):
                    self._publish(trace)
            if trace.is_published and state.has_next:
                del self._followed[trace.begin]

    def _waits(self, trace: StepTrace, state: TraceState) -> bool:
        """Whether a complete trace waits for the one after it in its thread."""
        may_get_number = trace.name == TRAINING and trace.number < 0 and state.is_before_current
        is_newest = self._newest.get(trace.thread.number) is trace
        return may_get_number or (trace.is_too_short and is_newest)

    def _end_step(self, step: TrainingStep) -> None:
        """Note that a training step is over: the trace with its optimizer is that of the step,
        and ends with it.
        """
        first = self._find_outside_of_calls(step.first)
        trace = self._find_outside_of_calls(step.last)
        # Two traces, if another optimizer stepped after the drain had to say which step is next.
        if first is not None and first.number < 0:
            first.number = step.number
        if trace is not None:
            trace.number = step.number
            trace.end_ns = max(trace.end_ns, step.end_ns)

    def _find_outside_of_calls(self, event_id: int) -> StepTrace | None:
        """The recorded trace of a range that is outermost but for traced Python calls; None if it
        lies in one of these, since many steps may lie in one call.
        """
        trace = self.find(event_id)
        if trace is None or self._own_traces.is_in_call(trace.begin, event_id):
            return None
        return trace

    def _note_cut(self, trace: StepTrace) -> None:
        if trace.name == TRAINING and trace.number < 0:
            self._cut.add(trace.thread.number)

    def _forget_oldest(self) -> None:
        """Before a batch, so that all traces of a batch are known while its rows are mapped."""
        complete = len(self._recorded) - len(self._followed) - MAX_REMEMBERED_TRACES
        if complete <= 0:
            return
        oldest = (begin for begin in self._recorded if begin not in self._followed)
        for begin in list(islice(oldest, complete)):
            del self._recorded[begin]

    def _publish(self, trace: StepTrace) -> None:
        if not trace.is_published:
            self._finished.append(trace)
            self._unsent.pop(trace.context.span_id, None)
        trace.is_published = True


class _Begin(NamedTuple):
    """The range with which a trace begins."""

    track: Track
    called: str
    source: int
    flags: int


def _begin_of(new: Any, batch: Batch) -> _Begin:
    """The range with which a new trace begins, as it was announced; if nobody did, all that is
    known is the thread of a row below it.
    """
    if new.opened < 0:
        return _Begin(batch.tracks[int(batch.thread[new.row])], "", EventSource.TORCH, 0)
    columns = batch.opened.columns
    flags = EventFlag.BEGINS_STEP if new.trains else int(columns["flags"][new.opened])
    return _Begin(
        batch.tracks[int(columns["thread"][new.opened])],
        batch.opened.names[int(columns["name"][new.opened])],
        int(columns["source"][new.opened]),
        flags,
    )


def _is_complete(state: TraceState) -> bool:
    return state.is_over and not state.is_open
