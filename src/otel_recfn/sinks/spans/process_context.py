"""The surroundings of work around which the program has no span: its parent, and the name of a
trace that we start for it.

    a worker process   below the span that it was made in, if it lives for that alone; otherwise
                       a root with a link to it
    a launched one     below the span that its launcher names in TRACEPARENT
    a thread           a root that is called after the thread

In a forked child the span that was current at the fork is still current, and will never end there.
In a child that was started otherwise it counts as current if no other one is (``otel_context.py``).
``program_spans.py`` tells these spans from those that began in the process.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_recfn import _native
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef, Track
from otel_recfn.sinks.spans.program_spans import ProgramSpans, inherited_context
from otel_recfn.sinks.spans.span_limits import Attributes
from otel_recfn.sinks.spans.span_target import OuterSpan, RootStart, SpanTarget
from otel_recfn.support.processes import WorkerProcess, thread_inherited_span

NAMELESS = "operators"
"""The name of a trace whose thread has no name."""
_NUMBERED = re.compile(r"^(Thread|ThreadPoolExecutor|Dummy|asyncio)[-_]\d+(_\d+)?")
"""Names that Python numbers.

Backends list the names of spans, so the numbers are left to the attribute ``thread.name``.
"""
FindsWorker = Callable[[], WorkerProcess | None]


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


class ProcessContext:
    """The surroundings of one process. It may become a worker later, and never ceases to be one."""

    def __init__(self, spans: ProgramSpans, find_worker: FindsWorker = lambda: None) -> None:
        self._spans, self._find_worker = spans, find_worker
        self._worker: WorkerProcess | None = None

    def without_inherited(self, batch: Batch) -> Batch:
        """The batch; in a worker, without the span that it was made in as a span around
        anything.
        """
        if self._spans.origin_span is None:
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
        inherited_span = self._spans.origin_span
        if worker is None or inherited_span is None:
            return OuterSpan(self._launched_in())
        if worker.single_caller:
            return OuterSpan(inherited_span)
        return OuterSpan(None, (trace.Link(inherited_span),))

    def _outer_of_step(self) -> OuterSpan | None:
        span = trace.get_current_span()
        self._spans.note_inherited_span(span)
        current = span.get_span_context()
        if current.is_valid and not self.is_outside(current.trace_id, current.span_id):
            return None
        inherited_span = thread_inherited_span()
        if inherited_span is not None and self.worker() is None:
            return OuterSpan(inherited_context(inherited_span))
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
