"""Rows become finished spans at a tracer provider's span processors.

    write(batch) ──► which rows become spans ──► SpanMapper ──► processors ──► exporters
                     StepTraces (roots of ours)                 in chunks that they don't drop

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
from opentelemetry.trace import SpanContext, TracerProvider

from otel_recfn.batches.links import ForwardBackwardLinks, ForwardRange
from otel_recfn.batches.number_sets import distinct
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import ContextFlag, EventKind
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sinks.spans.export_watch import ExportWatch
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.promised_traces import PromisedTraces
from otel_recfn.sinks.spans.provider import SAMPLED, ProviderResolver, SpanTarget
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.support import trace_states
from otel_recfn.support.span_ids import span_id

CHUNK_TIMEOUT_S = 30.0
_OTHER_KIND, _SUPPRESSED, _UNSAMPLED, _IN_SPAN, _ROOTLESS = range(5)
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
        fates = _fates(batch)
        rootless = frozenset(index for index, one in enumerate(batch.contexts) if _fate(one) == _ROOTLESS)
        self._traces.advance(batch, fates == _ROOTLESS, rootless, target)
        if (
            fates.max(initial=0) < _IN_SPAN
        ):  # below spans that are not sampled, say: a batch of these should cost next to nothing
            self._count(fates)
        else:
            links = dict(self._links.link(batch))
            for first in range(0, len(batch), self._chunk_size):
                self._pace()
                rows = np.arange(first, min(first + self._chunk_size, len(batch)))
                self._make_room(int(np.count_nonzero(fates[rows] >= _IN_SPAN)))
                self._write_rows(batch, fates, links, rows)
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

    def _write_rows(
        self, batch: Batch, fates: NDArray[np.uint8], links: Mapping[int, ForwardRange], rows: NDArray[np.int64]
    ) -> None:
        """Where there is no memory for all spans of them at once, for half, and so on."""
        try:
            spans, unsampled = self._spans(batch, fates, links, rows)
        except OUT_OF_MEMORY:
            if len(rows) < 2:
                raise
            half = len(rows) // 2
            self._write_rows(batch, fates, links, rows[:half])
            self._write_rows(batch, fates, links, rows[half:])
            return
        self._count(fates[rows])
        self._counts["unsampled"] += unsampled
        self._hand(spans)

    def _spans(
        self, batch: Batch, fates: NDArray[np.uint8], links: Mapping[int, ForwardRange], rows: NDArray[np.int64]
    ) -> tuple[list[ReadableSpan], int]:
        """Those of the rows, and how many rows are not sampled."""
        candidates = rows[fates[rows] >= _IN_SPAN]
        above = self._above(batch, candidates)
        taken = [row for row, one in zip(candidates.tolist(), above, strict=True) if one is not None]
        linked = {row: context for row in taken if row in links and (context := self._linked(links[row])) is not None}
        kept = [one for one in above if one is not None]
        spans = self._mapper.spans(batch, np.array(taken), kept, linked) if taken and self._mapper is not None else []
        return spans, len(candidates) - len(taken)

    def _count(self, fates: NDArray[np.uint8]) -> None:
        counted = np.bincount(fates, minlength=_ROOTLESS + 1).tolist()
        self._counts["rows"] += len(fates)
        self._counts["other_kinds"] += counted[_OTHER_KIND]
        self._counts["suppressed"] += counted[_SUPPRESSED]
        self._counts["unsampled"] += counted[_UNSAMPLED]

    def _above(self, batch: Batch, rows: NDArray[np.int64]) -> list[SpanContext | None]:
        """For each row the span that its outermost range is a child of, None where that trace isn't recorded."""
        contexts = {index: _span_context(batch.contexts[index]) for index in distinct(batch.context[rows]).tolist()}
        pairs = zip(batch.context[rows].tolist(), batch.root[rows].tolist(), strict=True)
        return [contexts[context] or self._root_context(root) for context, root in pairs]

    def _root_context(self, root: int) -> SpanContext | None:
        trace = self._traces.find(root)
        return trace.context if trace is not None else None

    def _linked(self, forward: ForwardRange) -> SpanContext | None:
        """The span of a forward range; None if it has none."""
        fate = _fate(forward.context)
        above = _span_context(forward.context) if fate == _IN_SPAN else None
        if fate == _ROOTLESS:
            above = self._root_context(forward.root)
        if above is None:
            return None
        return SpanContext(above.trace_id, span_id(forward.event_id), False, SAMPLED, above.trace_state)

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


def _fate(context: SpanContextRef) -> int:
    """What becomes of ranges in a context."""
    if context.flags & ContextFlag.SUPPRESSED:
        return _SUPPRESSED
    if context.trace_id == 0:
        return _ROOTLESS
    return _IN_SPAN if context.flags & ContextFlag.SAMPLED else _UNSAMPLED


def _fates(batch: Batch) -> NDArray[np.uint8]:
    by_context = np.array([_fate(context) for context in batch.contexts], dtype=np.uint8)
    return np.where(batch.kind == EventKind.RANGE, by_context[batch.context], np.uint8(_OTHER_KIND))


def _span_context(context: SpanContextRef) -> SpanContext | None:
    if context.trace_id == 0:
        return None
    state = trace_states.find(context.trace_id, context.span_id)
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)
