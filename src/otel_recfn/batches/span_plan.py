"""A plan of spans: which rows of a batch become spans, below which span, in which trace, linked to what. All in columns.

    Batch ──► fates ──► plan_spans ──► SpanPlan ──► who makes spans of it (objects for processors, or bytes)
              by context       ▲
                      roots of our own, links

A stage between (a budget, say) takes a plan and gives another one, of fewer rows, where ``parent`` leads to rows it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn.batches.links import Links
from otel_recfn.batches.rows import (
    Above,
    Fate,
    Fates,
    Ids,
    KnownContexts,
    Places,
    fates_of_rows,
    linked_contexts,
    linked_roots,
    linked_rows,
    planned_rows,
    wanted_above,
)
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.empty_columns import empty_column
from otel_recfn.model.events import ContextFlag
from otel_recfn.support.span_ids import span_ids

__all__ = ["Fate", "Fates", "Ids", "Places", "SpanPlan", "fate_of", "fates_of", "plan_spans"]

_SUPPRESSED, _SAMPLED, _STEP = int(ContextFlag.SUPPRESSED), int(ContextFlag.SAMPLED), int(ContextFlag.STEP)
_NO_IDS: Ids = np.zeros(0, np.uint64)
_WITHOUT, _ROOTLESS, _IN_SPAN, _UNSAMPLED = Fate.SUPPRESSED, Fate.ROOTLESS, Fate.IN_SPAN, Fate.UNSAMPLED


class SpanPlan(NamedTuple):
    """Columns of equal length, but for ``fate``."""

    batch: Batch
    fate: Fates
    """Of every row of the batch. Rows without a trace of our own are ``UNSAMPLED``."""
    row: Places
    """The rows that become spans."""
    parent: Ids
    """The event id of the range that its span is a child of; 0: it is a child of the span above."""
    above: Places
    """Index into ``spans_above``: the span that the outermost range is a child of."""
    linked_id: Ids
    """Span id of what the span links to, 0 where there is none."""
    linked_above: Places
    """Index into ``spans_above`` for the linked span; it is in that trace."""
    spans_above: Sequence[SpanContext]

    @property
    def span_id(self) -> Ids:
        """Of each span. It is worked out when it is asked for, because most ranges get no span."""
        return span_ids(self.batch.event_id[self.row])

    @property
    def parent_id(self) -> Ids:
        """The parent's span id."""
        if not len(self.row):
            return self.parent
        above_id = np.array([span.span_id for span in self.spans_above], np.uint64)
        return np.where(self.parent == 0, np.take(above_id, self.above), span_ids(self.parent))

    def rows(self) -> slice | Places:
        """``row``, as a slice where that is all rows in their order, so that columns need not be copied."""
        is_all = len(self.row) == len(self.batch) and bool((self.row[1:] > self.row[:-1]).all())
        return slice(None) if is_all else self.row

    def part(self, which: slice | Places) -> SpanPlan:
        """Some of the spans."""
        columns = {name: column for name, column in self._asdict().items() if name not in _OF_THE_BATCH}
        return self._replace(**{name: column[which] for name, column in columns.items()})


_OF_THE_BATCH = {"batch", "fate", "spans_above"}
"""The fields of a plan that are not a column of its spans."""


def fate_of(context: SpanContextRef) -> Fate:
    """What becomes of ranges in a context."""
    flags = int(context.flags)  # an operation on an IntFlag, or finding a member, costs as much as 20 rows
    if flags & _SUPPRESSED:
        return _WITHOUT
    if context.trace_id == 0:
        return _ROOTLESS
    return _IN_SPAN if flags & _SAMPLED else _UNSAMPLED


def fates_of(batch: Batch) -> Fates:
    """What becomes of each row, as far as its context tells."""
    return fates_of_rows(batch, _known(batch))


def _known(batch: Batch) -> KnownContexts:
    fate = np.array([fate_of(context) for context in batch.contexts], np.uint8)
    return KnownContexts(fate, _of_step(batch))


def _of_step(batch: Batch) -> Fates:
    return np.array([int(context.flags) & _STEP != 0 for context in batch.contexts], np.uint8)


def plan_spans(
    batch: Batch,
    fates: Fates,
    links: Links,
    span_of: Callable[[SpanContextRef], SpanContext],
    root_of: Callable[[int], SpanContext | None],
    order: Places | None = None,
) -> SpanPlan:
    """The plan of a batch.

    Args:
        batch: the batch.
        fates: of its rows, as ``fates_of`` says.
        links: of the batch.
        span_of: the span that a context stands for.
        root_of: the root span of ours above an outermost range, None where that trace is not recorded.
        order: of the batch's rows, for those of the plan; None: as they stand.
    """
    table = _SpansAbove(span_of, root_of)
    above = table.above(batch.contexts, *wanted_above(batch, fates))
    planned = planned_rows(batch, fates, _of_step(batch), above, order)
    linked_id, linked_above = _linked(table, links, planned.row, len(batch))
    return SpanPlan(batch, planned.fate, planned.row, planned.parent, planned.above, linked_id, linked_above, table.spans)


def _linked(table: _SpansAbove, links: Links, row: Places, rows: int) -> tuple[Ids, Places]:
    """Of each of these rows of so many, the span id and the trace of the forward range that has a span."""
    if not len(links.row) or not len(row):
        return empty_column(np.uint64, len(row)), empty_column(np.int64, len(row))
    contexts = linked_contexts(links)
    fate = np.zeros(len(links.contexts), np.uint8)
    for index in contexts.tolist():
        fate[index] = int(fate_of(links.contexts[index]))
    roots = linked_roots(links, fate) if (fate == _ROOTLESS).any() else _NO_IDS
    return linked_rows(links, fate, table.above(links.contexts, np.flatnonzero(fate == _IN_SPAN), roots), row, rows)


class _SpansAbove:
    """The spans that outermost ranges are children of, one for each context and outermost range that is asked for."""

    def __init__(self, span_of: Callable[[SpanContextRef], SpanContext], root_of: Callable[[int], SpanContext | None]) -> None:
        self._span_of, self._root_of = span_of, root_of
        self.spans: list[SpanContext] = []

    def above(self, table: Sequence[SpanContextRef], contexts: NDArray[Any], roots: Ids) -> Above:
        """Of these contexts of a table, and of these outermost ranges."""
        of_context = np.full(len(table), -1, np.int64)
        for index in contexts.tolist():
            of_context[index] = self._place(self._span_of(table[index]))
        return Above(of_context, roots, np.array([self._place_of_root(root) for root in roots.tolist()], np.int64))

    def _place_of_root(self, event_id: int) -> int:
        return self._place(self._root_of(event_id))

    def _place(self, span: SpanContext | None) -> int:
        if span is None:
            return -1
        self.spans.append(span)
        return len(self.spans) - 1
