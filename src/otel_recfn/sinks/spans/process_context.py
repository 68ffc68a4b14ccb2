"""The surroundings of work around which the program has no span: its parent, and the name of a
trace that we start for it.

    a worker process   below the span that it was made in, if it lives for that alone; otherwise
                       a root with a link to it
    a launched one     below the span that its launcher names in TRACEPARENT
    a thread           a root that is called after the thread

In a forked child the span that was current at the fork is still current, and will never end there.
In a child that was started otherwise it counts as current if no other one is (``otel_context.py``).
So the program's spans above ranges are remembered.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_recfn import _native
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef, Track
from otel_recfn.sinks.spans.span_limits import Attributes
from otel_recfn.sinks.spans.span_target import OuterSpan, RootStart, SpanTarget
from otel_recfn.support.processes import (
    ParentProcessSpan,
    WorkerProcess,
    parent_process_span,
    thread_inherited_span,
)

MAX_REMEMBERED = 1 << 12
"""The most spans of the program's that are remembered."""
LAST_NS = (1 << 63) - 1
NAMELESS = "operators"
"""The name of a trace whose thread has no name."""
_NUMBERED = re.compile(r"^(Thread|ThreadPoolExecutor|Dummy|asyncio)[-_]\d+(_\d+)?")
"""Names that Python numbers.

Backends list the names of spans, so the numbers are left to the attribute ``thread.name``.
"""
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
FindsWorker = Callable[[], WorkerProcess | None]


def remember(values: dict[Key, Value], key: Key, value: Value, limit: int) -> None:
    """Insert a value as the most recent one; above the limit, the oldest quarter is evicted.

    From any thread.
    """
    values.pop(key, None)
    values[key] = value
    if len(values) > limit:
        # One at a time would look through all that went before.
        for oldest in list(islice(values, limit // 4 + 1)):
            values.pop(oldest, None)


class SpanEnd(NamedTuple):
    """The end of a span of the program's.

    Times are in Unix nanoseconds; None if the program gave something else.
    """

    name: str
    start_ns: int | None
    end_ns: int | None
    failed: bool


class ProgramSpans:
    """The program's spans, by trace id and span id. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], ReadableSpan] = {}
        self._since_ns = 0
        """The time before which spans are another process's, or were given an earlier start by
        the program.
        """
        self._inherited: dict[tuple[int, int], None] = {}
        """The newest of such spans that ranges began below."""
        self._forked_in: SpanContext | None = None
        """The first of such spans."""

    @property
    def made_in(self) -> SpanContext | None:
        """The span of its parent in which this process was forked or started.

        A fork of an instrumented fork server that has imported the program learns of it when it
        exists already.
        """
        inherited_span = parent_process_span()
        if self._forked_in is not None or inherited_span is None:
            return self._forked_in
        return _span_context(inherited_span)

    def saw(self, trace_id: int, span_id: int, span: object) -> None:
        """Note that a range began below this span.

        A span whose end can't be seen here, as a remote one, is not remembered.
        """
        if not isinstance(span, ReadableSpan) or span.end_time is not None:
            return
        if self.began_here(span):
            remember(self._spans, (trace_id, span_id), span, MAX_REMEMBERED)
        else:
            self.saw_inherited(span)

    def saw_inherited(self, span: Any) -> None:
        """Note that a range or a step begins below this span, if it is another process's."""
        # A proxy's class is none: the current span may stand for a range that began here.
        if not issubclass(type(span), ReadableSpan) or self.began_here(span):
            return
        context = span.get_span_context()
        key = (context.trace_id, context.span_id)
        if key not in self._inherited:
            self._forked_in = self._forked_in or context
            remember(self._inherited, key, None, MAX_REMEMBERED)

    def began_here(self, span: ReadableSpan) -> bool:
        """Whether the span is none that this process has a copy of, as it was forked in it."""
        return (nanoseconds(span.start_time) or 0) >= self._since_ns

    def ended(self, span: ReadableSpan) -> None:
        """Note that a span has ended, if a range began below it: this is what it was at its end."""
        context = span.context if self._spans else None
        # A span context is a tuple whose first values are the ids.
        if context is not None and (key := context[:2]) in self._spans:
            self._spans[key] = span

    def was_inherited(self, trace_id: int, span_id: int) -> bool:
        """Whether this process was forked or started inside the span."""
        inherited_span = parent_process_span()
        is_that_one = inherited_span is not None and (
            inherited_span.trace_id,
            inherited_span.span_id,
        ) == (
            trace_id,
            span_id,
        )
        return is_that_one or (trace_id, span_id) in self._inherited

    def find(self, trace_id: int, span_id: int) -> ReadableSpan | None:
        """The span; None if it isn't remembered."""
        return self._spans.get((trace_id, span_id))

    def span_end(self, trace_id: int, span_id: int) -> SpanEnd | None:
        """The end of the span; None if it hasn't ended, or isn't remembered."""
        span = self._spans.get((trace_id, span_id))
        if span is None or span.end_time is None:
            return None
        name = span.name
        failed = span.status.status_code is StatusCode.ERROR
        return SpanEnd(
            name if isinstance(name, str) else "",
            nanoseconds(span.start_time),
            nanoseconds(span.end_time),
            failed,
        )

    def forget(self, trace_id: int, span_id: int) -> None:
        """Forget a span that nobody asks for any more."""
        self._spans.pop((trace_id, span_id), None)

    def start_empty(self) -> None:
        """Forget the parent's spans in a forked child, whose copies of them will never end."""
        self._spans.clear()
        self._inherited, self._forked_in = {}, None
        self._since_ns = time.time_ns()


def thread_name() -> str:
    """The calling thread's name; empty if Python doesn't know the thread, which
    ``current_thread`` would make known.
    """
    ident = threading.get_ident()
    return next((thread.name for thread in threading.enumerate() if thread.ident == ident), "")


def calling_thread() -> Track:
    """The calling thread, as ranges that begin in it have it."""
    name = thread_name()
    ident = threading.get_ident() if name else 0
    return Track(0, _native.current_thread_id(), threading.get_native_id(), ident, name)


def nanoseconds(time: Any) -> int | None:
    """A span's time as OTLP takes it; None for anything else: the SDK keeps whatever the program
    gives.
    """
    return int(time) if isinstance(time, (int, float)) and 0 <= time <= LAST_NS else None


def _span_context(inherited_span: ParentProcessSpan) -> SpanContext:
    state = inherited_span.trace_state
    return SpanContext(
        inherited_span.trace_id,
        inherited_span.span_id,
        False,
        TraceFlags(inherited_span.flags),
        TraceState.from_header([state]) if state else None,
    )


class ProcessContext:
    """The surroundings of one process. It may become a worker later, and never ceases to be one."""

    def __init__(self, spans: ProgramSpans, find_worker: FindsWorker = lambda: None) -> None:
        self._spans, self._find_worker = spans, find_worker
        self._worker: WorkerProcess | None = None

    def without_inherited(self, batch: Batch) -> Batch:
        """The batch; in a worker, without the span that it was made in as a span around
        anything.
        """
        if self._spans.made_in is None:
            return batch
        contexts = [self._without_inherited(one) for one in batch.contexts]
        if contexts == list(batch.contexts):
            return batch
        samples = [
            one._replace(context=self._without_inherited(one.context)) for one in batch.samples
        ]
        return replace(batch, contexts=contexts, samples=samples)

    def _without_inherited(self, context: SpanContextRef) -> SpanContextRef:
        return NO_CONTEXT if self.is_outside(context.trace_id, context.span_id) else context

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        """Whether the span ends in another process, and this one's ranges do not lie in it."""
        return self._spans.was_inherited(trace_id, span_id) and self.worker() is not None

    def worker(self) -> WorkerProcess | None:
        """The worker that this process is; None if it is none."""
        if self._worker is None:
            self._worker = self._find_worker()
        return self._worker

    def name(self, thread_name: str) -> str:
        """The name of a thread's work."""
        worker = self.worker()
        return worker.name if worker is not None else _NUMBERED.sub(r"\1", thread_name) or NAMELESS

    def start_root(self, target: SpanTarget, name: str) -> RootStart | None:
        """Start a trace of our own, or a part of the one that this process was made in; None if
        the sampler refuses.
        """
        return target.start_root(name, *self._outer())

    def start_step(
        self,
        target: SpanTarget,
        name: str,
        attributes: Attributes,
        start_ns: int,
        links: Sequence[trace.Link] = (),
    ) -> trace.Span | None:
        """Start the span of a step below the current span; without one, where ranges that begin
        in the calling thread would be. ``links``: further ones.

        None if the sampler or a span processor raises.
        """
        return target.start_span(name, attributes, start_ns, self._outer_of_step, links)

    def _outer(self) -> OuterSpan:
        worker = self.worker()
        inherited_span = self._spans.made_in
        if worker is None or inherited_span is None:
            return OuterSpan(self._launched_in())
        if worker.single_caller:
            return OuterSpan(inherited_span)
        return OuterSpan(None, (trace.Link(inherited_span),))

    def _outer_of_step(self) -> OuterSpan | None:
        span = trace.get_current_span()
        self._spans.saw_inherited(span)
        current = span.get_span_context()
        if current.is_valid and not self.is_outside(current.trace_id, current.span_id):
            return None
        inherited_span = thread_inherited_span()
        if inherited_span is not None and self.worker() is None:
            return OuterSpan(_span_context(inherited_span))
        return self._outer()

    def _launched_in(self) -> trace.SpanContext | None:
        """The span in which the process was launched, from environment variables by
        OpenTelemetry's specification.
        """
        if "TRACEPARENT" not in os.environ:
            return None
        headers = {
            name.lower(): os.environ[name]
            for name in ("TRACEPARENT", "TRACESTATE")
            if name in os.environ
        }
        context = trace.get_current_span(
            TraceContextTextMapPropagator().extract(headers, Context())
        ).get_span_context()
        return context if context.is_valid else None
