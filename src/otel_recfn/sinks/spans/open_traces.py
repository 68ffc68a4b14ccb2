"""Ranges that are open for long, as traces of their own: one for each outermost range in which something hangs.

    open for long      a root of ours, linked to the span that the ranges lie in
    └─ epoch           a span with ``recfn.partial``
       └─ aten::mm     another one

They can't be sent in the trace that they belong to: the span around them hasn't ended, and may never come, and they come there
themselves, under the same ids, when they end. So a hang is a small trace, whose spans are counted apart (``open_ranges``).
"""

from __future__ import annotations

import numpy as np
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.span_plan import Fate, Ids, SpanPlan, fate_of, span_context
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventKind
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import RootStart, SpanTarget
from otel_recfn.sinks.spans.sender import ROOT_BYTES, DecidedUnits
from otel_recfn.sinks.spans.span_hook import SpanHook
from otel_recfn.sinks.spans.step_traces import StepTrace, StepTraces

NAME = "open for long"
MOST_SPANS = 1000


class OpenTraces:
    """Of one sink.

    Args:
        traces: of our own.
        hook: the program's; None where it has none.
        most: spans of ranges in a trace.
    """

    def __init__(self, traces: StepTraces, hook: SpanHook | None, most: int | None) -> None:
        self._traces, self._hook, self._most = traces, hook, MOST_SPANS if most is None else most
        self._told: Ids = np.zeros(0, np.uint64)
        """The event ids of ranges that are open and were told."""

    def new(self, batch: Batch, target: SpanTarget) -> list[DecidedUnits]:
        """A trace of each tree of open ranges that has some which weren't told, with what they lie in.

        Args:
            batch: all ranges that are open for long, as partial rows.
            target: where spans go now.
        """
        self._told = self._told[is_in(self._told, batch.event_id)]
        trees = [self._tree(batch, rows, target) for rows in self._untold_trees(batch)]
        return [tree for tree in trees if tree is not None]

    def _untold_trees(self, batch: Batch) -> list[list[int]]:
        """The rows to tell, by the outermost range that they lie in, each tree in the order of begins."""
        fates = np.take(np.array([fate_of(context) for context in batch.contexts], np.uint8), batch.context)
        untold = (batch.kind == EventKind.RANGE) & (fates >= Fate.IN_SPAN) & ~is_in(batch.event_id, self._told)
        rows = np.flatnonzero(untold)
        trees: dict[int, list[int]] = {}
        for row in rows[np.lexsort((batch.event_id[rows], batch.start_ns[rows]))].tolist():
            root = int(batch.root[row])
            trees.setdefault(root, []).append(row)
        return list(trees.values())

    def _tree(self, batch: Batch, untold: list[int], target: SpanTarget) -> DecidedUnits | None:
        """Where the limit has no trace for it now, the next call tries again; what the sampler refuses is not told."""
        if not self._traces.limiter.admit(int(batch.end_ns.max())):
            return None
        links = [trace.Link(span) for span in (self._span_around(batch, untold[0]),) if span is not None]
        start = target.start_root(NAME, {"recfn.root": True}, links=links)
        self._told = np.concatenate([self._told, batch.event_id[untold]])
        return self._open_tree(batch, untold, start, target) if start is not None else None

    def _span_around(self, batch: Batch, row: int) -> SpanContext | None:
        """The program's span, or the root of ours, that the range will be below."""
        context = batch.contexts[int(batch.context[row])]
        if fate_of(context) == Fate.IN_SPAN:
            return span_context(context)
        found = self._traces.find(int(batch.root[row]))
        return found.context if found is not None else None

    def _open_tree(self, batch: Batch, untold: list[int], start: RootStart, target: SpanTarget) -> DecidedUnits:
        rows = self._with_ancestors(batch, untold)
        mapper = SpanMapper(target, self._hook.beside() if self._hook is not None else None)
        left_out = len(set(untold).difference(rows))
        thread, start_ns = batch.tracks[int(batch.thread[rows[0]])], int(batch.start_ns[rows].min())
        root = StepTrace(start, thread, start_ns, int(batch.end_ns[rows].max()), called=NAME)
        root.folded = {"recfn.folded.count": left_out} if left_out else None
        plan = _plan(batch, rows, start.context)
        return DecidedUnits(plan, roots=[root], mapper=mapper, nbytes=ROOT_BYTES + plan.nbytes(batch.names))

    def _with_ancestors(self, batch: Batch, untold: list[int]) -> list[int]:
        """The rows and the open ranges around them, parents first; as many as fit."""
        place, parents = dict(zip(batch.event_id.tolist(), range(len(batch)), strict=True)), batch.parent.tolist()
        kept: dict[int, None] = {}
        for row in untold:
            line: list[int] = []
            at: int | None = row
            while at is not None and at not in kept:
                line.append(at)
                at = place.get(parents[at])
            kept.update(dict.fromkeys(line[::-1][: self._most - len(kept)]))
        return list(kept)


def _plan(batch: Batch, rows: list[int], root: SpanContext) -> SpanPlan:
    row = np.array(rows, np.int64)
    parent, nothing = batch.parent[row], np.zeros(len(row), np.int64)
    inner = np.where(is_in(parent, batch.event_id[row]), parent, np.uint64(0))
    return SpanPlan(batch, row, inner, nothing, nothing.astype(np.uint64), nothing, [root])
