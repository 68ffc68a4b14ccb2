"""Traces for threads that work without any OpenTelemetry span: one per training step or outermost module call.

Others are called after their thread, or what their process works for (``surroundings.py``).

    thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[fwd]─[loss]─ ...      top-level ranges, in order
             └──────── training step ──────────┘   └── the next one

A trace is decided when a top-level range begins, since its descendants' rows come first. A begin starts a new trace when

* the top-level range before it was, or contained, an ``Optimizer.step#`` range (several optimizers in a row are one step);
* modules were called outside of training (a validation loop, say), and the range is a call in training or an optimizer's;
* its source's ranges begin traces, as module calls do, and the trace holds one already; a thread that trains calls modules many
  times per step (the model, the loss), so there it takes 1024, and 64 in an evaluation loop;
* the trace holds 2000 ranges (where a unit has a budget: 100,000 of a training step or call); it is neither of these, and began
  10 seconds ago; nothing ran in the thread for more than a second; or the wall clock was set back behind its start;
* the program was told of a trace for it already (``surroundings.py``).

A begin at top level says that every synchronous range before it in its thread has ended, so the order of ``Batch.opened`` is
all there is to know: what a batch's rows add (counts, ends, optimizers inside a range) is looked up by root beforehand.

A trace's root span is ours, and is given out once the trace is over and all its ranges have closed. A range whose begin was
never announced (its batch was missed, or it was forgotten) is taken in as if it began with the row that shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn import _native
from otel_recfn.batches.number_sets import distinct, groups, is_in
from otel_recfn.batches.span_plan import Fate, fate_of
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import OPTIMIZER, OPTIMIZER_STEP, SOURCES, EventFlag, EventKind, EventSource, trace_name
from otel_recfn.sinks.spans.provider import AttributeValue, RootStart, SpanTarget
from otel_recfn.sinks.spans.surroundings import PromisedTraces, Surroundings

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


def rows_in(batch: Batch, contexts: frozenset[int]) -> NDArray[np.int64]:
    """The ranges in these contexts."""
    if not len(batch) or int(batch.context.min()) > max(contexts, default=-1):
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


FIRST_ROOTS = 100
NS_PER_SECOND = 1_000_000_000
CLOCK_WAS_SET_NS = 10 * NS_PER_SECOND
"""Where a begin is this much earlier than one before it, somebody set the wall clock back: no thread reports so late."""


class RootLimiter:
    """Limits how many traces we start ourselves: a bucket that begins with a hundred tokens and isn't filled that high again.

    Time is that of the events, so what is admitted doesn't depend on how far behind the sink is.

    Args:
        roots_per_second: tokens a second; None admits everything.
    """

    def __init__(self, roots_per_second: float | None) -> None:
        self._rate = roots_per_second
        self._tokens = float(FIRST_ROOTS)
        self._at_ns = 0

    def admit(self, now_ns: int) -> bool:
        """Whether a trace may start at ``now_ns``; takes a token if so."""
        if self._rate is None:
            return True
        self._refill(now_ns, self._rate)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now_ns: int, rate: float) -> None:
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns < -CLOCK_WAS_SET_NS:
            self._at_ns = now_ns
        if elapsed_ns <= 0:  # threads report interleaved
            return
        refilled = self._tokens + rate * elapsed_ns / NS_PER_SECOND
        self._tokens = max(self._tokens, min(refilled, max(rate, 1.0)))
        self._at_ns = now_ns


TRAINING = "training step"
MAX_SPANS = 2000
MAX_CALLS_WHEN_TRAINING = 1024
MAX_CALLS_WHEN_EVALUATING = 64
IDLE_NS = NS_PER_SECOND
REST_NS = NS_PER_SECOND // 10
"""After so long, operators without a step or call around them are another piece of work."""
MAX_LENGTH_NS = 10 * NS_PER_SECOND
"""Of a trace that is neither a training step nor a call: its ranges are told when it ends."""


@dataclass(eq=False, slots=True)
class StepTrace:
    """One trace of our own."""

    start: RootStart | None
    """None where the sampler or the limit refused the trace."""
    thread: Track
    start_ns: int
    end_ns: int
    spans: int = 0
    calls: int = 0
    """How many of its top-level ranges are of a source whose ranges begin traces."""
    called: str = ""
    trains: bool = False
    number: int = -1
    """Which training step of its thread it is, from 0."""
    evaluates: bool = False
    """The modules that were called last were called outside of training."""
    aside: bool = False
    """It is a worker process's: how long it takes says nothing, since it waits for whom it works."""
    open: set[int] = field(default_factory=set)
    """Event ids of its top-level ranges that haven't closed."""
    over: bool = False
    given_out: bool = False
    folded: Mapping[str, AttributeValue] | None = None
    """What the root span says of ranges that were folded directly into the trace."""
    folded_ranges: int = 0
    """How many these are."""

    @property
    def context(self) -> SpanContext | None:
        """The root span's; None where the trace is not recorded."""
        return self.start.context if self.start is not None else None

    @property
    def name(self) -> str:
        """The root span's name."""
        return TRAINING if self.trains else self.called


@dataclass(slots=True)
class ThreadSteps:
    """Which trace a thread works on now, and what it did last."""

    trains: bool = False
    steps: int = 0
    """How many of its traces were training steps."""
    after_step: bool = False
    current: StepTrace | None = None
    last_root: int = 0

    def note_step(self, trace: StepTrace) -> None:
        """An optimizer steps in a trace of the thread."""
        if not trace.trains:
            trace.trains, trace.number = True, self.steps
            self.steps += 1


def starts_new(thread: ThreadSteps, trace: StepTrace, begin: TopLevel, most_spans: int) -> bool:
    """Whether a begin in the thread is the first of a new trace, and not the next one of its current trace.

    Args:
        thread: what it did last.
        trace: its current one.
        begin: the begin.
        most_spans: of a training step or a call.
    """
    if thread.after_step and not begin.is_step:
        return True
    if trace.evaluates and begin.is_training:
        return True
    calls = 1 if not thread.trains else MAX_CALLS_WHEN_EVALUATING if trace.evaluates else MAX_CALLS_WHEN_TRAINING
    if begin.begins_trace and trace.calls >= calls:
        return True
    if begin.start_ns < trace.start_ns:
        return True
    if not (thread.trains or trace.calls) and (trace.spans >= MAX_SPANS or begin.start_ns - trace.start_ns > MAX_LENGTH_NS):
        return True
    rest_ns = IDLE_NS if thread.trains or trace.calls else REST_NS
    return trace.spans >= most_spans or (not trace.open and begin.start_ns - trace.end_ns > rest_ns)


def new_trace(start: RootStart | None, begin: TopLevel, called: str, aside: bool) -> StepTrace:
    """The trace that begins there.

    Args:
        start: where it is recorded.
        begin: its first range.
        called: its name, as far as is known now.
        aside: see ``StepTrace.aside``.
    """
    return StepTrace(start, begin.thread, begin.start_ns, begin.start_ns, called=called, aside=aside)


def note_call(trace: StepTrace, begin: TopLevel) -> None:
    """A top-level range began in the trace: the first that begins traces is what the trace is called after."""
    if begin.begins_trace:
        trace.called = trace.called if trace.calls else begin.trace_name
        trace.calls += 1
    trace.evaluates = trace.evaluates or begin.is_evaluation


MAX_REMEMBERED_ROOTS = 1 << 15
MAX_THREADS = 4096
MAX_WAITING = 1024


class StepTraces:
    """Groups top-level ranges into traces, per thread.

    Args:
        roots_per_second: how many traces may start, beyond the first hundred; None for all.
        surroundings: what they are called after, and belong to.
        promised: traces that the program was told of.
        most_spans: a trace with so many ranges takes no more outermost ones.
    """

    def __init__(
        self,
        roots_per_second: float | None,
        surroundings: Surroundings,
        promised: PromisedTraces | None = None,
        most_spans: int = MAX_SPANS,
    ) -> None:
        self._surroundings, self._most_spans = surroundings, most_spans
        self.limiter = RootLimiter(roots_per_second)
        """Of all traces that we start."""
        self._promised = promised or PromisedTraces()
        self._threads: dict[int, ThreadSteps] = {}
        self._roots: dict[int, StepTrace] = {}
        self._waiting: dict[StepTrace, None] = {}
        self._unsent: dict[StepTrace, None] = {}
        """Those whose root spans are to be sent: all that rows were found to belong to, until they are given out."""
        self._finished: list[StepTrace] = []
        """The traces whose root spans are complete, each once; only those that are recorded."""

    def advance(self, batch: Batch, target: SpanTarget) -> dict[int, SpanContext]:
        """Take in a batch: its announced begins, then whatever its rows say.

        Args:
            batch: the batch.
            target: asked for each new trace.

        Returns:
            Of each outermost range that rows lie in which belong to traces of our own, the root span, where it is recorded.
        """
        self._forget_oldest_roots()
        contexts = frozenset(index for index, one in enumerate(batch.contexts) if fate_of(one) == Fate.ROOTLESS)
        begins = [
            TopLevel(one.event_id, one.name, one.source, one.start_ns, batch.tracks[one.thread], one.flags)
            for one in batch.opened.in_contexts(contexts)
        ]
        rows = rows_in(batch, contexts)
        roots: dict[int, SpanContext] = {}
        if begins or len(rows):
            of_roots = rows_by_root(batch, rows)
            self._take_in(batch, begins, of_roots, target)
            traces = [(root, self._roots[root].context) for root in of_roots.spans]
            roots = {root: context for root, context in traces if context is not None}
        return roots

    def _take_in(self, batch: Batch, begins: Sequence[TopLevel], rows: RootRows, target: SpanTarget) -> None:
        self._note_training(begins, rows)
        self._note(rows, rows.spans)
        for begin in begins:
            self._open(begin, target)
            self._note(rows, (begin.event_id,))
        self._adopt_unannounced(batch, rows, target)

    def take_finished(self) -> list[StepTrace]:
        """The traces that are complete, and were not taken before."""
        finished, self._finished = self._finished, []
        return finished

    def find(self, root: int) -> StepTrace | None:
        """The trace of the ranges below a root."""
        return self._roots.get(root)

    def open_spans(self) -> set[int]:
        """The span ids of the roots that are still to be given out."""
        return {trace.context.span_id for trace in self._unsent if trace.context is not None}

    def close_idle(self, now_ns: int) -> None:
        """End the traces of threads in which nothing ran in the second before ``now_ns``, or that a set clock left behind."""
        for thread in self._threads.values():
            trace = thread.current
            if trace is not None and not trace.open and abs(now_ns - trace.end_ns) > IDLE_NS:
                self._end_trace(thread)

    def close_all(self) -> None:
        """End every trace now; ranges still open come later, into a trace whose root span is out, or never."""
        for thread in self._threads.values():
            self._end_trace(thread)
        for trace in [*self._waiting, *self._unsent]:
            self._give_out(trace)

    def _open(self, begin: TopLevel, target: SpanTarget) -> None:
        thread = self._thread(begin.thread)
        promised, start = self._promised.decide(begin.event_id)
        if thread.current is not None and (promised or starts_new(thread, thread.current, begin, self._most_spans)):
            self._end_trace(thread)
        if thread.current is None:
            self._threads[begin.thread.number] = self._threads.pop(begin.thread.number)  # the last to be forgotten
            thread.current = self._new_trace(start, begin) if promised else self._start_trace(thread, begin, target)
        trace = thread.current
        if trace.context is not None:
            self._unsent[trace] = None
        self._roots[begin.event_id] = trace
        self._promised.publish(begin.event_id, trace.context)
        trace.open.add(begin.event_id)
        note_call(trace, begin)
        thread.last_root, thread.after_step = begin.event_id, begin.is_step
        if begin.is_step:
            thread.note_step(trace)

    def _start_trace(self, thread: ThreadSteps, begin: TopLevel, target: SpanTarget) -> StepTrace:
        """What the sampler sees as name is what is known now: the root span's own name is decided at its end."""
        trains = thread.trains and not begin.is_evaluation
        start = self._surroundings.start_root(target, TRAINING if trains else self._name_of(begin))
        if start is not None and (start.parent is None or start.parent.is_remote) and not self.limiter.admit(begin.start_ns):
            start = None
        return self._new_trace(start, begin)

    def _new_trace(self, start: RootStart | None, begin: TopLevel) -> StepTrace:
        return new_trace(start, begin, self._name_of(begin), self._surroundings.worker() is not None)

    def _name_of(self, begin: TopLevel) -> str:
        return begin.trace_name or self._surroundings.name(begin.thread.name)

    def _note(self, rows: RootRows, roots: Iterable[int]) -> None:
        """Apply what the rows tell about those of ``roots`` that are known."""
        for root in roots:
            trace = self._roots.get(root)
            if trace is None or root not in rows.spans:
                continue
            trace.spans += rows.spans[root]
            trace.evaluates = root not in rows.trained and (trace.evaluates or root in rows.evaluated)
            if root in rows.stepped:
                self._note_step(trace, root)
            if root in rows.ends:
                self._note_end(trace, root, rows.ends[root])

    def _note_step(self, trace: StepTrace, root: int) -> None:
        thread = self._thread(trace.thread)
        thread.note_step(trace)
        if thread.last_root == root:
            thread.after_step = True

    def _note_end(self, trace: StepTrace, root: int, end_ns: int) -> None:
        trace.open.discard(root)
        if not trace.given_out:
            trace.end_ns = max(trace.end_ns, end_ns)
        if trace.over and not trace.open:
            self._give_out(trace)

    def _note_training(self, begins: Iterable[TopLevel], rows: RootRows) -> None:
        """A thread trains from the first on that an optimizer does in it; within this batch, from before it."""
        for info in {begin.thread for begin in begins if begin.is_of_optimizer} | rows.training_threads:
            self._thread(info).trains = True

    def _adopt_unannounced(self, batch: Batch, rows: RootRows, target: SpanTarget) -> None:
        for root in sorted(rows.spans.keys() - self._roots.keys()):
            row = rows.first_row[root]
            thread, start_ns = batch.tracks[int(batch.thread[row])], int(batch.start_ns[row])
            self._open(TopLevel(root, "", EventSource.TORCH, start_ns, thread), target)
            self._note(rows, (root,))

    def _thread(self, info: Track) -> ThreadSteps:
        thread = self._threads.get(info.number)
        if thread is None:
            thread = self._threads[info.number] = ThreadSteps()
            if len(self._threads) > MAX_THREADS:
                self._end_trace(self._threads.pop(next(iter(self._threads))))
        return thread

    def _forget_oldest_roots(self) -> None:
        """Before a batch, so that all roots of a batch are known while its rows are mapped. Twice as many may be open."""
        surplus = len(self._roots) - MAX_REMEMBERED_ROOTS
        for root in list(islice(self._roots, max(0, surplus))):
            trace = self._roots.pop(root)
            if root in trace.open and len(self._roots) < 2 * MAX_REMEMBERED_ROOTS:
                self._roots[root] = trace  # the last to be forgotten

    def _end_trace(self, thread: ThreadSteps) -> None:
        trace, thread.current = thread.current, None
        thread.after_step = False
        if trace is None:
            return
        trace.over = True
        if not trace.open:
            self._give_out(trace)
            return
        self._waiting[trace] = None
        if len(self._waiting) > MAX_WAITING:
            self._give_out(next(iter(self._waiting)))

    def _give_out(self, trace: StepTrace) -> None:
        if trace.context is not None and not trace.given_out:
            self._finished.append(trace)
        trace.given_out = True
        self._waiting.pop(trace, None)
        self._unsent.pop(trace, None)
