"""Ranges that are open for long, as traces of their own, since their unit isn't sent while it may
hang.
"""

from __future__ import annotations

import numpy as np
from opentelemetry.trace import Link, SpanContext

from otel_recfn.batches.number_sets import Indices, equals, is_in
from otel_recfn.batches.outcomes import Outcome, outcome_of, span_context
from otel_recfn.batches.span_plan import Ids, SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RowKind
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.sender import ROOT_BYTES, DecidedUnits
from otel_recfn.sinks.spans.span_hook import FOLDED_COUNT, SpanHook
from otel_recfn.sinks.spans.span_target import SpanTarget
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.sinks.spans.step_traces import StepTraces

OPEN_FOR_LONG = "open for long"
MAX_OPEN = 1000
"""The most spans of a trace of open ranges."""


class OpenTraces:
    """Ranges that are open for long, as traces of their own: one for each outermost range in which
    something hangs.

        open for long      a root of ours, linked to the span that the ranges lie in
        └─ epoch           a span with ``recfn.partial``
           └─ aten::mm     another one

    They can't be sent in the trace that they belong to: the span around them hasn't ended, and may
    never come, and they come there themselves, under the same ids, when they end. The program's
    hook is asked apart from the spans of ranges that have ended.
    """

    def __init__(self, traces: StepTraces, hook: SpanHook | None, volume: Volume) -> None:
        self._traces, self._hook, self._torch_names = traces, hook, volume.torch_names
        self._limit = MAX_OPEN if volume.unit_budget is None else volume.unit_budget
        self._reported: Ids = np.zeros(0, np.uint64)
        """The event ids of open ranges that have had such a trace."""

    def new(self, batch: Batch, target: SpanTarget) -> list[DecidedUnits]:
        """A trace for each tree of ranges that are open for long, if some of them had none yet.

        ``batch`` has all ranges that are open for long, as partial rows.
        """
        self._reported = self._reported[is_in(self._reported, batch.event_id)]
        gets_span = np.array(
            [outcome_of(one) >= Outcome.IN_SPAN for one in batch.contexts], np.bool_
        )
        unreported = (
            equals(batch.kind, RowKind.RANGE)
            & np.take(gets_span, batch.context)
            & ~is_in(batch.event_id, self._reported)
        )
        rows = np.flatnonzero(unreported)
        trees: dict[int, list[int]] = {}
        for row in rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))].tolist():
            trees.setdefault(int(batch.root[row]), []).append(row)
        found = [self._trace(batch, root, rows, target) for root, rows in trees.items()]
        return [units for units in found if units is not None]

    def _trace(
        self, batch: Batch, root: int, unreported: list[int], target: SpanTarget
    ) -> DecidedUnits | None:
        """The trace of one tree; None if the sampler refuses, or the limit has none left: then
        the next call tries again.
        """
        if not self._traces.limiter.admit(int(batch.end_ns.max())):
            return None
        parent_span = self._parent_span(batch, root, unreported[0])
        start = target.start_root(
            OPEN_FOR_LONG, links=[Link(parent_span)] if parent_span is not None else []
        )
        self._reported = np.concatenate([self._reported, batch.event_id[unreported]])
        if start is None:
            return None
        rows = np.array(self._with_ancestors(batch, unreported), np.int64)
        open_trace = StepTrace(
            start,
            thread=batch.tracks[int(batch.thread[rows[0]])],
            name=OPEN_FOR_LONG,
            start_ns=int(batch.start_ns[rows].min()),
            end_ns=int(batch.end_ns[rows].max()),
        )
        left_out = len(set(unreported).difference(rows.tolist()))
        open_trace.extra_attributes = {FOLDED_COUNT: left_out} if left_out else {}
        plan = self._plan(batch, rows, start.context)
        mapper = SpanMapper(
            target, self._hook.for_other_trace() if self._hook is not None else None
        )
        return DecidedUnits(
            plan, roots=[open_trace], mapper=mapper, nbytes=ROOT_BYTES + plan.nbytes(batch.names)
        )

    def _parent_span(self, batch: Batch, root: int, row: int) -> SpanContext | None:
        """The span that a tree of ranges lies in, by its root and a row of it; None if it is in a
        trace of ours that isn't recorded.
        """
        context = batch.contexts[int(batch.context[row])]
        if outcome_of(context) == Outcome.IN_SPAN:
            return span_context(context)
        trace = self._traces.find(root)
        return trace.context if trace is not None else None

    def _plan(self, batch: Batch, rows: Indices, root_span: SpanContext) -> SpanPlan:
        """The plan of the spans of a trace, those without a parent among them below its root."""
        event_id = batch.event_id[rows]
        parent = batch.parent_in_span[rows]
        zeros = np.zeros(len(rows), np.int64)
        return SpanPlan(
            batch=batch,
            row=rows,
            event_id=event_id,
            parent=np.where(is_in(parent, event_id), parent, np.uint64(0)),
            parent_span=zeros,
            linked_id=zeros.astype(np.uint64),
            linked_span=zeros,
            parent_spans=[root_span],
            torch_names=self._torch_names,
        )

    def _with_ancestors(self, batch: Batch, unreported: list[int]) -> list[int]:
        """The rows and the open ranges around them in their span, parents first, as many as fit."""
        index_of = dict(zip(batch.event_id.tolist(), range(len(batch)), strict=True))
        parents = batch.parent_in_span.tolist()
        selected: dict[int, None] = {}
        for row in unreported:
            line: list[int] = []
            ancestor: int | None = row
            while ancestor is not None and ancestor not in selected:
                line.append(ancestor)
                ancestor = index_of.get(parents[ancestor])
            selected.update(dict.fromkeys(line[::-1][: self._limit - len(selected)]))
        return list(selected)
