"""Where a trace of our own begins, what it is called, how many there may be; the rules stand above ``step_traces.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from otel_recfn.model.batch import Track
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.sinks.spans.outermost import TopLevel
from otel_recfn.sinks.spans.provider import RootStart

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
