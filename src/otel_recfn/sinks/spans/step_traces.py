"""Traces for threads that work without any OpenTelemetry span: one per training step or outermost module call.

Others are called after their thread, or what their process works for (``surroundings.py``).

    thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[fwd]─[loss]─ ...      top-level ranges, in order
             └──────── training step ──────────┘   └── the next one

A trace is decided when a top-level range begins, since its descendants' rows come first. A begin starts a new trace when

* the top-level range before it was, or contained, an ``Optimizer.step#`` range (several optimizers in a row are one step);
* modules were called outside of training (a validation loop, say), and the range is a call in training or an optimizer's;
* its source's ranges begin traces, as module calls do, and the trace holds one already; a thread that trains calls modules many
  times per step (the model, the loss), so there it takes 1024, and 64 in an evaluation loop;
* the trace holds 100,000 ranges; it is neither a training step nor a call, and holds 2000 or began 10 seconds ago; nothing ran
  in the thread for more than a second; or the wall clock was set back behind its start;
* the program got a trace for it already (``surroundings.py``).

A begin at top level says that every synchronous range before it in its thread has ended, so the order of ``Batch.opened`` is
all there is to know: what a batch's rows add (counts, ends, optimizers inside a range) is looked up by root beforehand.

A trace's root span is ours, and is given out once the trace is over and all its ranges have closed. A range whose begin was
never announced (its batch was missed, or it was forgotten) is taken in as if it began with the row that shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import distinct, groups, is_in
from otel_recfn.batches.stage import Fate, fate_of
from otel_recfn.model.batch import Batch, Opened, Track
from otel_recfn.model.events import (
    OPTIMIZER,
    OPTIMIZER_STEP,
    SOURCES,
    EventFlag,
    EventSource,
    RowKind,
    trace_name,
)
from otel_recfn.sinks.spans.provider import RootStart, SpanTarget
from otel_recfn.sinks.spans.surroundings import PromisedTraces, Surroundings

TRAINING = "training step"
MAX_SPANS, MAX_SPANS_OF_A_STEP = 2000, 100_000
MAX_CALLS_WHEN_TRAINING = 1024
MAX_CALLS_WHEN_EVALUATING = 64
NS_PER_SECOND = 1_000_000_000
IDLE_NS = NS_PER_SECOND
REST_NS = NS_PER_SECOND // 10
"""The rest after which operators without a step or call around them are another piece of work."""
MAX_LENGTH_NS = 10 * NS_PER_SECOND
"""The longest trace that is neither a training step nor a call: its ranges are sent when it ends."""
MAX_REMEMBERED_ROOTS = 1 << 15
MAX_THREADS = 4096
FIRST_ROOTS = 100
CLOCK_WAS_SET_NS = 10 * NS_PER_SECOND
"""The time by which a begin is earlier than one before it only if somebody set the wall clock back."""


class RootLimiter:
    """A limit of the traces that we start: a bucket that begins with a hundred tokens and isn't filled that high again.

    Time is that of the events, so what is admitted doesn't depend on how far behind the sink is. A rate of None admits all.
    """

    def __init__(self, roots_per_second: float | None) -> None:
        self._rate = roots_per_second
        self._tokens = float(FIRST_ROOTS)
        self._at_ns = 0

    def admit(self, now_ns: int) -> bool:
        """Whether a trace may start at ``now_ns``; takes a token if so."""
        if self._rate is None:
            return True
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns > 0:
            refilled = self._tokens + self._rate * elapsed_ns / NS_PER_SECOND
            self._tokens = max(self._tokens, min(refilled, max(self._rate, 1.0)))
        if elapsed_ns > 0 or elapsed_ns < -CLOCK_WAS_SET_NS:  # else threads report interleaved
            self._at_ns = now_ns
        admits = self._tokens >= 1
        self._tokens -= admits
        return admits


@dataclass(eq=False, slots=True)
class StepTrace:
    """A trace that we started, or that was refused."""

    start: RootStart | None
    """The start of the trace; None if the sampler or the limit refused it."""
    thread: Track
    start_ns: int
    end_ns: int
    spans: int = 0
    calls: int = 0
    """The number of its top-level ranges of a source whose ranges begin traces; the first names it."""
    called: str = ""
    trains: bool = False
    number: int = -1
    """The number of the training step in its thread, from 0."""
    evaluates: bool = False
    """Whether the modules that were called last were called outside of training."""
    aside: bool = False
    """Whether it is a worker process's, whose duration means nothing, since it waits for the process that it works for."""
    open: set[int] = field(default_factory=set)
    """The event ids of its top-level ranges that haven't closed."""
    over: bool = False
    given_out: bool = False
    folded: int = 0
    """The number of its ranges that have no span of their own."""
    further: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes of the root span, of the whole trace."""

    @property
    def context(self) -> SpanContext | None:
        """The root span's context; None if the trace is not recorded."""
        return self.start.context if self.start is not None else None

    @property
    def name(self) -> str:
        """The root span's name."""
        return TRAINING if self.trains else self.called


@dataclass(slots=True)
class _Thread:
    """The current trace of a thread, and what the thread did last."""

    trains: bool = False
    steps: int = 0
    """The number of its traces that were training steps."""
    after_step: bool = False
    current: StepTrace | None = None
    last_root: int = 0

    def note_step(self, trace: StepTrace) -> None:
        """Note that an optimizer steps in a trace of the thread."""
        if not trace.trains:
            trace.trains, trace.number = True, self.steps
            self.steps += 1

    def starts_new(self, begin: Opened) -> bool:
        """Whether a begin starts a new trace, or belongs to the current one."""
        trace = self.current
        if (
            trace is None
            or (self.after_step and not _is_step(begin))
            or begin.start_ns < trace.start_ns
        ):
            return True
        in_training = not _is_evaluation(begin) and (
            begin.source == EventSource.MODULE or begin.name.startswith(OPTIMIZER)
        )
        if trace.evaluates and in_training:
            return True
        calls = (
            1
            if not self.trains
            else MAX_CALLS_WHEN_EVALUATING
            if trace.evaluates
            else MAX_CALLS_WHEN_TRAINING
        )
        if _begins_trace(begin) and trace.calls >= calls:
            return True
        rest_ns = IDLE_NS
        if not (self.trains or trace.calls):
            if trace.spans >= MAX_SPANS or begin.start_ns - trace.start_ns > MAX_LENGTH_NS:
                return True
            rest_ns = REST_NS
        return trace.spans >= MAX_SPANS_OF_A_STEP or (
            not trace.open and begin.start_ns - trace.end_ns > rest_ns
        )


def _is_step(begin: Opened) -> bool:
    return begin.name.startswith(OPTIMIZER_STEP)


def _is_evaluation(begin: Opened) -> bool:
    """Whether it is a module call that is no part of training."""
    return bool(begin.flags & EventFlag.EVALUATION)


def _begins_trace(begin: Opened) -> bool:
    """Whether its source has a trace for each such range."""
    return SOURCES[begin.source].begins_traces


class _Rows(NamedTuple):
    """The rows of a batch, summed up for each outermost range that they lie in, by its event id."""

    spans: dict[int, int]
    first_row: dict[int, int]
    ends: dict[int, int]
    stepped: set[int]
    trained: set[int]
    """The outermost ranges in which modules are called in training."""
    evaluated: set[int]
    """The outermost ranges in which modules are called outside of training."""
    training_threads: set[Track]


def _rows_by_root(batch: Batch, rows: NDArray[np.int64]) -> _Rows:
    roots, first, counts = groups(batch.root[rows])
    top = rows[batch.parent[rows] == 0]
    step_names = [
        name
        for name in distinct(batch.name[rows]).tolist()
        if batch.names[name].startswith(OPTIMIZER_STEP)
    ]
    steps = rows[is_in(batch.name[rows], step_names)]
    calls = rows[batch.source[rows] == EventSource.MODULE]
    evaluated = (batch.flags[calls] & np.uint32(EventFlag.EVALUATION)) != 0
    return _Rows(
        spans=dict(zip(roots.tolist(), counts.tolist(), strict=True)),
        first_row=dict(zip(roots.tolist(), rows[first].tolist(), strict=True)),
        ends=dict(zip(batch.event_id[top].tolist(), batch.end_ns[top].tolist(), strict=True)),
        stepped=set(batch.root[steps].tolist()),
        trained=set(batch.root[calls[~evaluated]].tolist()),
        evaluated=set(batch.root[calls[evaluated]].tolist()),
        training_threads={batch.tracks[index] for index in distinct(batch.thread[steps]).tolist()},
    )


class StepTraces:
    """The traces that we start: top-level ranges, grouped per thread."""

    def __init__(
        self,
        roots_per_second: float | None,
        surroundings: Surroundings,
        promised: PromisedTraces | None = None,
    ) -> None:
        self._surroundings = surroundings
        self.limiter = RootLimiter(roots_per_second)
        """The limit of all traces that we start."""
        self._promised = promised or PromisedTraces()
        self._threads: dict[int, _Thread] = {}
        self._roots: dict[int, StepTrace] = {}
        self._unsent: dict[int, StepTrace] = {}
        """The recorded traces that aren't taken, by the span ids of their roots."""
        self._finished: list[StepTrace] = []
        """The recorded traces whose root spans are complete, each once."""

    def advance(self, batch: Batch, target: SpanTarget) -> dict[int, SpanContext]:
        """Take in a batch: its announced begins, then its rows. The target is asked for each new trace.

        Returns:
            The root span of each outermost range around rows of traces that we started, if it is recorded.
        """
        if len(self._roots) > MAX_REMEMBERED_ROOTS:
            self._forget_oldest_roots()
        rootless = np.array([fate_of(one) == Fate.ROOTLESS for one in batch.contexts])
        is_range = batch.kind == np.uint8(
            RowKind.RANGE
        )  # of another type, numpy crashes where it finds no memory for that
        ranges = np.flatnonzero(np.take(rootless, batch.context) & is_range)
        begins = batch.opened.in_contexts(rootless)
        if not len(begins) and not len(ranges):
            return {}
        rows, tracks = _rows_by_root(batch, ranges), batch.tracks
        # A thread trains from its first optimizer on; within this batch, from before it.
        for thread in {
            tracks[begin.thread] for begin in begins if begin.name.startswith(OPTIMIZER)
        } | rows.training_threads:
            self._thread(thread).trains = True
        self._note(rows, rows.spans)
        for begin in begins:
            self._open(begin, tracks[begin.thread], target)
            self._note(rows, (begin.event_id,))
        for root in sorted(
            rows.spans.keys() - self._roots.keys()
        ):  # outermost ranges that were never announced
            row = rows.first_row[root]
            track, start_ns = int(batch.thread[row]), int(batch.start_ns[row])
            self._open(
                Opened(root, "", EventSource.TORCH, start_ns, track, 0), tracks[track], target
            )
            self._note(rows, (root,))
        traces = [(root, self._roots[root].context) for root in rows.spans]
        return {root: context for root, context in traces if context is not None}

    def take_finished(self) -> list[StepTrace]:
        """Remove and return the traces that are complete."""
        finished, self._finished = self._finished, []
        return finished

    def find(self, root: int) -> StepTrace | None:
        """The trace of the ranges below a root."""
        return self._roots.get(root)

    def has_open(self, root: SpanContext) -> bool:
        """Whether it is the root of a trace that isn't complete."""
        return root.span_id in self._unsent

    def close_idle(self, now_ns: int) -> None:
        """End the traces of threads in which nothing ran in the second before ``now_ns``, or that a set clock left behind."""
        for thread in self._threads.values():
            trace = thread.current
            if trace is not None and not trace.open and abs(now_ns - trace.end_ns) > IDLE_NS:
                self._end_trace(thread)

    def close_all(self) -> None:
        """End every trace now. Ranges that are still open come later, into a trace whose root span was sent, or never."""
        for thread in self._threads.values():
            self._end_trace(thread)
        for trace in list(self._unsent.values()):
            self._give_out(trace)

    def _open(self, begin: Opened, track: Track, target: SpanTarget) -> None:
        thread = self._thread(track)
        promised, start = self._promised.decide(begin.event_id)
        if promised or thread.starts_new(begin):
            self._end_trace(thread)
        if thread.current is None:
            self._threads[track.number] = self._threads.pop(
                track.number
            )  # the last to be forgotten
            name = trace_name(begin.source, begin.name) or self._surroundings.name(track.name)
            start = start if promised else self._start_root(thread, begin, name, target)
            aside = self._surroundings.worker() is not None
            thread.current = StepTrace(
                start, track, begin.start_ns, begin.start_ns, called=name, aside=aside
            )
        trace = thread.current
        if trace.context is not None:
            self._unsent[trace.context.span_id] = trace
        self._roots[begin.event_id] = trace
        self._promised.publish(begin.event_id, trace.start)
        trace.open.add(begin.event_id)
        if _begins_trace(begin):
            trace.called = trace.called if trace.calls else trace_name(begin.source, begin.name)
            trace.calls += 1
        trace.evaluates = trace.evaluates or _is_evaluation(begin)
        thread.last_root, thread.after_step = begin.event_id, _is_step(begin)
        if thread.after_step:
            thread.note_step(trace)

    def _start_root(
        self, thread: _Thread, begin: Opened, name: str, target: SpanTarget
    ) -> RootStart | None:
        """Start the root. The sampler sees the name that is known now; the root span's own name is decided at its end."""
        trains = thread.trains and not _is_evaluation(begin)
        start = self._surroundings.start_root(target, TRAINING if trains else name)
        if (
            start is not None
            and (start.parent is None or start.parent.is_remote)
            and not self.limiter.admit(begin.start_ns)
        ):
            return None
        return start

    def _note(self, rows: _Rows, roots: Iterable[int]) -> None:
        """Apply what the rows say of those of ``roots`` that are known."""
        for root in roots:
            trace = self._roots.get(root)
            if trace is None or root not in rows.spans:
                continue
            trace.spans += rows.spans[root]
            trace.evaluates = root not in rows.trained and (
                trace.evaluates or root in rows.evaluated
            )
            if root in rows.stepped:
                thread = self._thread(trace.thread)
                thread.note_step(trace)
                thread.after_step = thread.after_step or thread.last_root == root
            if root in rows.ends:
                trace.open.discard(root)
                if not trace.given_out:
                    trace.end_ns = max(trace.end_ns, rows.ends[root])
                if trace.over and not trace.open:
                    self._give_out(trace)

    def _thread(self, info: Track) -> _Thread:
        thread = self._threads.get(info.number)
        if thread is None:
            thread = self._threads[info.number] = _Thread()
            if len(self._threads) > MAX_THREADS:
                self._end_trace(self._threads.pop(next(iter(self._threads))))
        return thread

    def _forget_oldest_roots(self) -> None:
        """Before a batch, so that all roots of a batch are known while its rows are mapped. Twice as many may be open."""
        for root in list(islice(self._roots, len(self._roots) - MAX_REMEMBERED_ROOTS)):
            trace = self._roots.pop(root)
            if root in trace.open and len(self._roots) < 2 * MAX_REMEMBERED_ROOTS:
                self._roots[root] = trace  # the last to be forgotten

    def _end_trace(self, thread: _Thread) -> None:
        trace, thread.current = thread.current, None
        thread.after_step = False
        if trace is None:
            return
        trace.over = True
        if not trace.open:
            self._give_out(trace)

    def _give_out(self, trace: StepTrace) -> None:
        if trace.context is not None and not trace.given_out:
            self._finished.append(trace)
            self._unsent.pop(trace.context.span_id, None)
        trace.given_out = True
