"""Traces for threads that work without any OpenTelemetry span: one per training step or outermost module call.

    thread ──[fwd]─[loss]─[bwd]─[Optimizer.step#]───[fwd]─[loss]─ ...      top-level ranges, in order
             └──────── training step ──────────┘   └── the next one

A trace is decided when a top-level range begins, since its descendants' rows come first. A begin starts a new trace when

* the top-level range before it was, or contained, an ``Optimizer.step#`` range (several optimizers in a row are one step);
* it is a module call and the trace holds one already; a thread that trains calls modules many times per step (the model, the
  loss), so there it takes 64, as in an evaluation loop;
* the trace holds 2000 spans; nothing ran in the thread for more than a second; or the wall clock was set back behind its start;
* the program was told of a trace for it already (``promised_traces.py``).

A begin at top level says that every synchronous range before it in its thread has ended, so the order of ``Batch.opened`` is
all there is to know: what a batch's rows add (counts, ends, optimizers inside a range) is looked up by root beforehand.

A trace's root span is ours, and is given out once the trace is over and all its ranges have closed. A range whose begin was
never announced (its batch was dropped, or it was forgotten) is taken in as if it began with the row that shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import distinct, groups, is_in
from otel_recfn.model.batch import Batch, ThreadInfo
from otel_recfn.model.events import EventSource
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.sinks.spans.promised_traces import PromisedTraces
from otel_recfn.sinks.spans.provider import RootStart, SpanTarget
from otel_recfn.sinks.spans.root_limiter import NS_PER_SECOND, RootLimiter

OPTIMIZER_STEP = "Optimizer.step#"
MODULE_PREFIX = "nn.Module: "
MAX_SPANS = 2000
MAX_MODULE_CALLS_WHEN_TRAINING = 64
IDLE_NS = NS_PER_SECOND
MAX_REMEMBERED_ROOTS = 1 << 15
MAX_THREADS = 4096
MAX_WAITING = 1024


@dataclass(eq=False, slots=True)
class StepTrace:
    """One trace of our own."""

    context: SpanContext | None
    """Of the root span; None where the sampler or the limit refused the trace."""
    attributes: Mapping[str, AttributeValue]
    thread: ThreadInfo
    start_ns: int
    end_ns: int
    spans: int = 0
    module_calls: int = 0
    first_module: str = ""
    trains: bool = False
    open: set[int] = field(default_factory=set)
    """Top-level ranges that haven't closed."""
    over: bool = False
    given_out: bool = False

    @property
    def name(self) -> str:
        """The root span's name."""
        if self.trains:
            return "training step"
        return _module_call(self.first_module) if self.module_calls else "operators"


@dataclass(slots=True)
class _Thread:
    trains: bool = False
    after_step: bool = False
    current: StepTrace | None = None
    last_root: int = 0


class _TopLevel(NamedTuple):
    """The begin of a top-level range."""

    event_id: int
    name: str
    source: int
    start_ns: int
    thread: ThreadInfo


@dataclass(slots=True)
class _Rows:
    """What a batch's rows tell about each root among them."""

    spans: dict[int, int]
    first_row: dict[int, int]
    ends: dict[int, int]
    stepped: set[int]
    training_threads: set[ThreadInfo]


class StepTraces:
    """Groups top-level ranges into traces, per thread.

    Args:
        roots_per_second: how many traces may start, beyond the first hundred; None for all.
        promised: traces that the program was told of.
    """

    def __init__(self, roots_per_second: float | None, promised: PromisedTraces | None = None) -> None:
        self._limiter = RootLimiter(roots_per_second)
        self._promised = promised or PromisedTraces()
        self._threads: dict[int, _Thread] = {}
        self._roots: dict[int, StepTrace] = {}
        self._waiting: dict[StepTrace, None] = {}
        self._unsent: dict[StepTrace, None] = {}
        """Those whose root spans are to be sent: all that rows were found to belong to, until they are given out."""
        self.finished: deque[StepTrace] = deque()
        """The traces whose root spans are complete, each once; only those that are recorded. Who sends one removes it."""
        self._swept_ns = 0
        self.limited = 0
        """Traces that the limit refused."""
        self.unsampled = 0
        """Traces that the sampler refused."""

    def advance(self, batch: Batch, rootless: NDArray[np.bool_], rootless_contexts: frozenset[int], target: SpanTarget) -> None:
        """Take in a batch: its announced begins, then whatever its rows say.

        Args:
            batch: the batch.
            rootless: the rows that belong to traces of our own.
            rootless_contexts: indices of the contexts without a span.
            target: asked for each new trace.
        """
        self._forget_oldest_roots()
        begins = _begins(batch, rootless_contexts) if rootless_contexts else []
        rows = _summary(batch, rootless)
        self._note_training(begins, rows)
        self._note(rows, rows.spans)
        for begin in begins:
            self._open(begin, target)
            self._note(rows, (begin.event_id,))
        self._adopt_unannounced(batch, rows, target)
        self._sweep(batch)

    def find(self, root: int) -> StepTrace | None:
        """The trace of the ranges below a root."""
        return self._roots.get(root)

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
        for trace in [*self._waiting, *self._unsent]:  # also those of which, without memory, nothing else is known
            self._give_out(trace)

    def _open(self, begin: _TopLevel, target: SpanTarget) -> None:
        thread = self._thread(begin.thread)
        promised, start = self._promised.settle(begin.event_id)
        if thread.current is not None and (promised or _starts_new(thread, thread.current, begin)):
            self._end_trace(thread)
        if thread.current is None:
            self._threads[begin.thread.number] = self._threads.pop(begin.thread.number)  # the last to be forgotten
            thread.current = _trace(start, begin) if promised else self._start_trace(thread, begin, target)
        trace = thread.current
        if trace.context is not None:
            self._unsent[trace] = None
        self._roots[begin.event_id] = trace
        self._promised.publish(begin.event_id, trace.context)
        trace.open.add(begin.event_id)
        if begin.source == EventSource.MODULE and not _is_step(begin):
            trace.first_module = trace.first_module or begin.name
            trace.module_calls += 1
        thread.last_root, thread.after_step = begin.event_id, _is_step(begin)
        trace.trains = trace.trains or thread.after_step

    def _start_trace(self, thread: _Thread, begin: _TopLevel, target: SpanTarget) -> StepTrace:
        """What the sampler sees as name is what is known now: the root span's own name is decided at its end."""
        is_module = begin.source == EventSource.MODULE
        name = "training step" if thread.trains else _module_call(begin.name) if is_module else "operators"
        start = target.start_root(name, {"recfn.root": True})
        if start is None:
            self.unsampled += 1
        elif not self._limiter.admit(begin.start_ns):
            self.limited += 1
            start = None
        return _trace(start, begin)

    def _note(self, rows: _Rows, roots: Iterable[int]) -> None:
        """Apply what the rows tell about those of ``roots`` that are known."""
        for root in roots:
            trace = self._roots.get(root)
            if trace is None or root not in rows.spans:
                continue
            trace.spans += rows.spans[root]
            if root in rows.stepped:
                self._note_step(trace, root)
            if root in rows.ends:
                self._note_end(trace, root, rows.ends[root])

    def _note_step(self, trace: StepTrace, root: int) -> None:
        trace.trains = True
        thread = self._thread(trace.thread)
        if thread.last_root == root:
            thread.after_step = True

    def _note_end(self, trace: StepTrace, root: int, end_ns: int) -> None:
        trace.open.discard(root)
        if not trace.given_out:
            trace.end_ns = max(trace.end_ns, end_ns)
        if trace.over and not trace.open:
            self._give_out(trace)

    def _note_training(self, begins: Iterable[_TopLevel], rows: _Rows) -> None:
        """A thread trains from its first optimizer step on; within this batch, from before it."""
        for info in {begin.thread for begin in begins if _is_step(begin)} | rows.training_threads:
            self._thread(info).trains = True

    def _adopt_unannounced(self, batch: Batch, rows: _Rows, target: SpanTarget) -> None:
        for root in sorted(rows.spans.keys() - self._roots.keys()):
            row = rows.first_row[root]
            thread, start_ns = batch.threads[int(batch.thread[row])], int(batch.start_ns[row])
            self._open(_TopLevel(root, "", EventSource.TORCH, start_ns, thread), target)
            self._note(rows, (root,))

    def _sweep(self, batch: Batch) -> None:
        """End idle traces as the events' time goes by: their threads may never begin anything again."""
        now_ns = int(batch.end_ns.max()) if len(batch) else 0
        if abs(now_ns - self._swept_ns) > IDLE_NS:  # also where the wall clock was set back
            self._swept_ns = now_ns
            self.close_idle(now_ns)

    def _thread(self, info: ThreadInfo) -> _Thread:
        thread = self._threads.get(info.number)
        if thread is None:
            thread = self._threads[info.number] = _Thread()
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

    def _end_trace(self, thread: _Thread) -> None:
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
            self.finished.append(trace)
        trace.given_out = True
        self._waiting.pop(trace, None)
        self._unsent.pop(trace, None)


def _trace(start: RootStart | None, begin: _TopLevel) -> StepTrace:
    context, attributes = start if start is not None else (None, {})
    return StepTrace(context, attributes, begin.thread, begin.start_ns, begin.start_ns)


def _begins(batch: Batch, contexts: frozenset[int]) -> list[_TopLevel]:
    return [
        _TopLevel(one.event_id, one.name, one.source, one.start_ns, batch.threads[one.thread])
        for one in batch.opened
        if one.context in contexts
    ]


def _starts_new(thread: _Thread, trace: StepTrace, begin: _TopLevel) -> bool:
    if thread.after_step and not _is_step(begin):
        return True
    calls = MAX_MODULE_CALLS_WHEN_TRAINING if thread.trains else 1
    if begin.source == EventSource.MODULE and not _is_step(begin) and trace.module_calls >= calls:
        return True
    if begin.start_ns < trace.start_ns:
        return True
    return trace.spans >= MAX_SPANS or (not trace.open and begin.start_ns - trace.end_ns > IDLE_NS)


def _is_step(begin: _TopLevel) -> bool:
    return begin.name.startswith(OPTIMIZER_STEP)


def _module_call(name: str) -> str:
    return f"module call: {name.removeprefix(MODULE_PREFIX)}"


def _summary(batch: Batch, rootless: NDArray[np.bool_]) -> _Rows:
    rows = np.flatnonzero(rootless)
    roots, first, counts = groups(batch.root[rows])
    top = rows[batch.parent[rows] == 0]
    steps = rows[is_in(batch.name[rows], _step_names(batch, rows))]
    return _Rows(
        spans=dict(zip(roots.tolist(), counts.tolist(), strict=True)),
        first_row=dict(zip(roots.tolist(), rows[first].tolist(), strict=True)),
        ends=dict(zip(batch.event_id[top].tolist(), batch.end_ns[top].tolist(), strict=True)),
        stepped=set(batch.root[steps].tolist()),
        training_threads={batch.threads[index] for index in distinct(batch.thread[steps]).tolist()},
    )


def _step_names(batch: Batch, rows: NDArray[np.int64]) -> list[int]:
    return [name for name in distinct(batch.name[rows]).tolist() if batch.names[name].startswith(OPTIMIZER_STEP)]
