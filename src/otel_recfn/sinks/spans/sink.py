"""Rows become finished spans at a tracer provider's span processors.

    write(batch) ──► StepTraces (roots of ours) ──► plan_spans ──► SpanMapper ──► processors ──► exporters
                                                    in columns     in chunks that they don't drop

Whose child a range is: the range around it; at top level the span that was current when it began; else a root of ours.
A span that isn't sampled, and suppressed instrumentation, give no spans.

Every row is counted once, and every span once:

    rows + roots = spans + unsampled + suppressed + no_provider + other_kinds + failed
    spans        = spans_exported + spans_failed + spans_pending + spans_handed

``spans_handed`` are those given to processors whose exporter can't be watched; ``failed`` are rows without memory for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TracerProvider, TraceState

from otel_recfn.batches.links import ForwardBackwardLinks
from otel_recfn.batches.span_plan import Fate, SpanPlan, fate_of, fates_of, plan_spans
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.spans.export_watch import ExportWatch
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.promised_traces import PromisedTraces
from otel_recfn.sinks.spans.provider import SAMPLED, ProviderResolver, SpanTarget
from otel_recfn.sinks.spans.step_traces import StepTraces

CHUNK_TIMEOUT_S = 30.0
_COUNTERS = {Fate.OTHER_KIND: "other_kinds", Fate.SUPPRESSED: "suppressed", Fate.UNSAMPLED: "unsampled"}
_logger = logging.getLogger(__name__)


class SpansSink:
    """Hands spans to a provider's span processors.

    Every method may wait for an exporter, since the SDK's ``force_flush`` knows no timeout: give it to the session inside a
    ``BackgroundSink``.

    Args:
        tracer_provider: None for the global one, also when that is set later.
        roots_per_second: traces that we start ourselves, beyond the first hundred; None for all.
        promised: of these, the ones that the program was told of.
    """

    name = "spans"

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        roots_per_second: float | None = 1.0,
        promised: PromisedTraces | None = None,
    ) -> None:
        self._tracer_provider, self._roots_per_second = tracer_provider, roots_per_second
        self._promised = promised or PromisedTraces()
        self._resolver = ProviderResolver(tracer_provider)
        self._target: SpanTarget | None = None
        self._mapper: SpanMapper | None = None
        self._watch = ExportWatch()
        self._traces = StepTraces(roots_per_second, self._promised)
        self._links = ForwardBackwardLinks()
        self._pace: Callable[[], None] = _no_pause
        self._counts = dict.fromkeys(
            ("rows", "roots", "spans", "unsampled", "suppressed", "no_provider", "other_kinds", "failed", "spans_handed"), 0
        )
        self._settled = 0
        self._unflushed = 0
        self._chunk_size = 1
        self._logged = False

    def write(self, batch: Batch) -> None:
        """Build spans of a batch and hand them on, in chunks. What there is no memory for counts as failed."""
        before = self._counts["rows"]
        try:
            self._write(batch)
        except OUT_OF_MEMORY:
            left = len(batch) - (self._counts["rows"] - before)
            self._counts["rows"] += left
            self._counts["failed"] += left
            self._traces.close_all()
            self._log_once("there was no memory for some rows, which count as failed")

    def _write(self, batch: Batch) -> None:
        target = self._current_target()
        if target is None:
            self._counts["rows"] += len(batch)
            self._counts["no_provider"] += len(batch)
            return
        fates = fates_of(batch)
        rootless = frozenset(index for index, one in enumerate(batch.contexts) if fate_of(one) == Fate.ROOTLESS)
        self._traces.advance(batch, fates == Fate.ROOTLESS, rootless, target)
        if fates.max(initial=0) < Fate.IN_SPAN:  # below spans that are not sampled, say: costs next to nothing
            self._count(fates)
        else:
            self._write_spans(plan_spans(batch, fates, self._links.match(batch), _span_context, self._root_context))
        self._write_roots()

    def has_target(self) -> bool:
        """Whether anything takes spans now. From any thread."""
        return self._resolver.resolve() is not None

    def trace_of(self, root: int) -> SpanContext | None:
        """The root span of ours above an outermost range without a span around it; None without one. From any thread."""
        target = self._resolver.resolve()
        if target is None:
            return None
        return self._promised.trace_of(root, partial(target.start_root, "operators", {"recfn.root": True}))

    def flush(self, timeout_s: float) -> bool:
        """Export what was handed on. Roots that may still grow stay open; those of idle threads don't."""
        if self._current_target() is None:
            return True
        self.idle()
        return self._force_flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """End all roots, export, and leave the provider as it was."""
        self._traces.close_all()
        self._write_roots()
        if timeout_s > 0:
            self._force_flush(timeout_s)
        self._watch.remove()

    def counters(self) -> Mapping[str, int]:
        """See the module's sums. ``roots_limited`` and ``roots_unsampled`` count traces, ``unsampled`` their rows too."""
        counts = dict(self._counts)
        watched = counts["spans"] - counts["spans_handed"]
        exported = min(self._watch.exported, watched)
        failed = max(0, self._settled - exported)
        return {
            **counts,
            "spans_exported": exported,
            "spans_failed": failed,
            "spans_pending": watched - exported - failed,
            "roots_limited": self._traces.limited,
            "roots_unsampled": self._traces.unsampled,
        }

    def after_fork_in_child(self) -> Sink | None:
        """A fresh sink; the inherited exporters are unwatched first. Span ids got a new key when the child began."""
        self._watch.remove()
        return SpansSink(self._tracer_provider, self._roots_per_second, self._promised)

    def set_pace(self, pace: Callable[[], None]) -> None:
        """``pace`` is called before every chunk: it may sleep there, or raise to end the work."""
        self._pace = pace

    def note_gap(self) -> None:
        """Batches were lost: what they began and ended is unknown, so the roots that are open end here."""
        self._traces.close_all()

    def idle(self) -> None:
        """Nothing has been written for a while: finish the roots of threads that rest."""
        self._traces.close_idle(time.time_ns())
        self._write_roots()

    def _current_target(self) -> SpanTarget | None:
        target = self._resolver.resolve()
        if target is None:
            return None
        if target is not self._target:
            self._target, self._mapper = target, SpanMapper(target)
        self._watch.watch(target.exporters(), target.scope)
        self._chunk_size = target.chunk_size()
        return target

    def _write_spans(self, plan: SpanPlan) -> None:
        """In chunks; each counts the rows up to the next one's first span."""
        row = 0
        for first in range(0, max(len(plan.row), 1), self._chunk_size):
            self._pace()
            chunk = plan.part(slice(first, first + self._chunk_size))
            self._make_room(len(chunk.row))
            after = first + self._chunk_size
            end = int(plan.row[after]) if after < len(plan.row) else len(plan.batch)
            self._write_chunk(chunk, row, end)
            row = end

    def _write_chunk(self, plan: SpanPlan, first: int, end: int) -> None:
        """Where there is no memory for all spans of it at once, for half, and so on.

        Args:
            plan: of these spans alone.
            first, end: the rows that it stands for.
        """
        try:
            spans = self._mapper.spans(plan) if self._mapper is not None else []
        except OUT_OF_MEMORY:
            if len(plan.row) < 2:
                raise
            half = len(plan.row) // 2
            middle = int(plan.row[half])
            self._write_chunk(plan.part(slice(half)), first, middle)
            self._write_chunk(plan.part(slice(half, None)), middle, end)
            return
        self._count(plan.fate[first:end])
        self._hand(spans)

    def _count(self, fates: NDArray[np.uint8]) -> None:
        counted = np.bincount(fates, minlength=len(Fate)).tolist()
        self._counts["rows"] += len(fates)
        for fate in (Fate.OTHER_KIND, Fate.SUPPRESSED, Fate.UNSAMPLED):
            self._counts[_COUNTERS[fate]] += counted[fate]

    def _root_context(self, root: int) -> SpanContext | None:
        trace = self._traces.find(root)
        return trace.context if trace is not None else None

    def _write_roots(self) -> None:
        finished = self._traces.take_finished()
        mapper = self._mapper
        if mapper is None:
            return
        for first in range(0, len(finished), self._chunk_size):
            spans = [mapper.root_span(trace) for trace in finished[first : first + self._chunk_size]]
            self._make_room(len(spans))
            self._counts["roots"] += len(spans)
            self._hand(spans)

    def _make_room(self, spans: int) -> None:
        """Before any of them is counted: an exporter that hangs is waited for here."""
        if self._unflushed + spans > self._chunk_size:
            self._force_flush(CHUNK_TIMEOUT_S)

    def _hand(self, spans: list[ReadableSpan]) -> None:
        target = self._target
        if target is None:
            return
        self._unflushed += len(spans)
        self._counts["spans"] += len(spans)
        if not self._watch.watching:
            self._counts["spans_handed"] += len(spans)
        for span in spans:
            try:
                target.on_end(span)
            except Exception:
                self._log_once("a span processor raised in on_end; its spans count as failed")

    def _force_flush(self, timeout_s: float) -> bool:
        """What no exporter took by the end of it counts as failed, until one reports otherwise."""
        target = self._target
        if target is None:
            return True
        flushed = target.force_flush(timeout_s)
        self._unflushed = 0
        self._settled = self._counts["spans"] - self._counts["spans_handed"]
        return flushed

    def _log_once(self, message: str) -> None:
        if not self._logged:
            self._logged = True
            _logger.exception("otel-recfn: %s", message)


def _no_pause() -> None:
    """Nobody waits for the time that we take."""


def _span_context(context: SpanContextRef) -> SpanContext:
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)
