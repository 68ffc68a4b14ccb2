"""Where the rows of producers stand in the tree: their roots and contexts follow from the parents that they name.

    drained batch, with copies of open ranges ──► note ──┐
    a producer's batch: ids and parents ───────► placed ─┴► the same with roots, contexts and what it announces

A parent is looked for among the rows of the producer's batch itself, the ranges that are open, and those that ended lately.
One in none of them began before anything was recorded, or ended so long ago that it was forgotten: the row becomes top-level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.ancestry import MAX_KNOWN, followed
from otel_recfn.batches.announced import announced
from otel_recfn.batches.distinct import Distinct
from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.remembered import Columns, Mask, Remembered, by_id
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventKind
from otel_recfn.model.tables import SpanContextRef

MAX_CONTEXTS = 2 * MAX_KNOWN


class Placement:
    """Of a session, batch by batch.

    Args:
        most: how many ranges that ended are remembered.
    """

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._ended = Remembered(most, columns=3)
        """Event id, root, and the context as an index into ``_contexts``."""
        self._open: Columns = ()
        self._contexts: Distinct[SpanContextRef] = Distinct()

    def note(self, batch: Batch) -> None:
        """A batch of the recorder, drained with the open ranges."""
        self._open = self._columns(batch, np.arange(len(batch)) >= batch.closed)
        self._remember(batch)

    def placed(self, produced: Batch) -> Batch:
        """A producer's batch with its rows in the tree."""
        parent, root, context = produced.parent.copy(), produced.event_id.copy(), produced.context.copy()
        inside = (parent != 0) & is_in(parent, produced.event_id)
        outside = np.flatnonzero((parent != 0) & ~inside)
        found, (above, number) = self._ended.find(parent[outside], self._open)
        parent[outside[~found]] = 0
        known, contexts = outside[found], Distinct(produced.contexts)
        root[known] = above[found]
        context[known] = contexts.indices(self._contexts.values, number[found].astype(np.uint32))
        outermost = _outermost(produced, inside)
        placed = replace(
            produced, parent=parent, root=root[outermost], context=context[outermost], contexts=contexts.values, opened=()
        )
        self._remember(placed)
        return replace(placed, opened=announced(placed, np.flatnonzero((parent == 0) & (placed.kind == EventKind.RANGE))))

    def _remember(self, batch: Batch) -> None:
        ended = np.arange(len(batch)) < batch.closed
        self._ended.add(self._columns(batch, ended & (batch.kind == EventKind.RANGE)))
        if len(self._contexts.values) > MAX_CONTEXTS:
            self._forget_contexts()

    def _columns(self, batch: Batch, which: Mask) -> Columns:
        context = self._contexts.indices(batch.contexts, batch.context[which])
        return by_id(batch.event_id[which], batch.root[which], context.astype(np.uint64))

    def _forget_contexts(self) -> None:
        """Let go of the contexts that only forgotten ranges had."""
        contexts: Distinct[SpanContextRef] = Distinct()
        self._open = _with_contexts(self._open, self._contexts.values, contexts)
        for place, chunk in enumerate(self._ended.chunks):
            self._ended.chunks[place] = _with_contexts(chunk, self._contexts.values, contexts)
        self._contexts = contexts


def _outermost(batch: Batch, inside: Mask) -> NDArray[np.int64]:
    """Of each row, the outermost row of the batch that it lies in; the row itself where there is none."""
    in_order = np.argsort(batch.event_id)
    inner = in_order[inside[in_order]]
    outermost = followed(batch.event_id.copy(), batch.event_id[inner], batch.parent[inner])
    rows: NDArray[np.int64] = in_order[np.searchsorted(batch.event_id[in_order], outermost)]
    return rows


def _with_contexts(chunk: Columns, values: Sequence[SpanContextRef], contexts: Distinct[SpanContextRef]) -> Columns:
    ids, root, context = chunk
    return ids, root, contexts.indices(values, context.astype(np.uint32)).astype(np.uint64)
