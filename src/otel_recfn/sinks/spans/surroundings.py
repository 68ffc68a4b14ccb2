"""Where work belongs around which the program has no span, and what a trace of our own is called that begins with it.

    a worker process   below the span that it was made in, if it lives for that alone; else a root with a link to it
    a launched one     below the span that its launcher names in TRACEPARENT
    a thread           a root that is called after the thread

In a forked child the span that was current at the fork is still current, and will never end there. In a child that was started
otherwise it counts as current where no other one is (``otel_context.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_recfn.model.batch import NO_CONTEXT, Batch
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import RootStart, SpanTarget
from otel_recfn.support.process_role import WorkerProcess

FindsWorker = Callable[[], WorkerProcess | None]
NAMELESS = "operators"
"""What a trace is called whose thread has no name."""
_NUMBERED = re.compile(r"^(Thread|ThreadPoolExecutor|Dummy|asyncio)[-_]\d+(_\d+)?")
"""Names that Python numbers. Backends list the names of spans, so the numbers are left to the attribute ``thread.name``."""


def no_worker() -> WorkerProcess | None:
    """This process is no worker."""
    return None


class Surroundings:
    """Of one process.

    Args:
        spans: the program's, among them those that this process was made in.
        find_worker: what this process works for. It may become one later, and never ceases to be one.
    """

    def __init__(self, spans: ProgramSpans, find_worker: FindsWorker = no_worker) -> None:
        self._spans, self._find_worker = spans, find_worker
        self._worker: WorkerProcess | None = None

    def without_inherited(self, batch: Batch) -> Batch:
        """The batch, where in a worker the span that it was made in is no span around anything."""
        if self._spans.made_in is None:
            return batch
        contexts = [NO_CONTEXT if self.is_outside(one.trace_id, one.span_id) else one for one in batch.contexts]
        return replace(batch, contexts=contexts) if contexts != list(batch.contexts) else batch

    def is_outside(self, trace_id: int, span_id: int) -> bool:
        """Whether the span is one that ends in another process, and that this one's ranges do not lie in."""
        return self._spans.was_inherited(trace_id, span_id) and self.worker() is not None

    def worker(self) -> WorkerProcess | None:
        """What this process works for; None: for nobody."""
        if self._worker is None:
            self._worker = self._find_worker()
        return self._worker

    def name(self, thread_name: str) -> str:
        """What the work of a thread is called."""
        worker = self.worker()
        return worker.name if worker is not None else _NUMBERED.sub(r"\1", thread_name) or NAMELESS

    def start_root(self, target: SpanTarget, name: str) -> RootStart | None:
        """Start a trace of our own, or a part of the one that this process was made in; None where the sampler says no."""
        worker, around, attributes = self.worker(), self._spans.made_in, {"recfn.root": True}
        if worker is None or around is None:
            return target.start_root(name, attributes, parent=self._launched_in())
        if worker.of_one_caller:
            return target.start_root(name, attributes, parent=around)
        return target.start_root(name, attributes, links=(trace.Link(around),))

    def _launched_in(self) -> trace.SpanContext | None:
        """The span that the process was launched in, as environment variables carry it by OpenTelemetry's specification."""
        carried = {name.lower(): os.environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in os.environ}
        span = trace.get_current_span(TraceContextTextMapPropagator().extract(carried, Context())) if carried else None
        context = span.get_span_context() if span is not None else None
        return context if context is not None and context.is_valid else None
