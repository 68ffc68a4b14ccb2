"""The ranges that a capture sees around rows, if it doesn't see all that is recorded.

    recorded    aten::linear ──► nn.Module: Linear ──► request
    seen        aten::linear ────────────────────────► request    without modules

A parent, of any thread, and open or ended, is looked for

1. among the rows of the batch, which has copies of open ranges if it is for views,
2. among the ranges that ended in the batch before, or that are around an open one.

A parent in neither began before the capture, or had ended a batch before the row began: the row
becomes top-level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import equals, is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RowKind

Mask = NDArray[np.bool_]
Ids = NDArray[np.uint64]
Columns = tuple[Ids, ...]
"""Columns of equal length."""


class VisibleAncestors(NamedTuple):
    """The ranges that are seen around each row."""

    parent: Ids
    """The nearest ancestor that is seen; 0 if there is none."""
    root: Ids
    """The outermost ancestor in the same span that is seen; the row itself if there is none."""


class Ancestry:
    """The ranges that a capture sees around each row, batch by batch."""

    def __init__(self) -> None:
        self._known: Columns = (np.zeros(0, np.uint64),) * 3
        """The ids, ascending, of ranges that ended in the last batch or are around an open one; the
        nearest range that is seen, itself or around it, or 0; and its root, 0 where a span lies
        between.
        """

    def note_all(self, batch: Batch) -> None:
        """Note a batch with copies of the open ranges, all of which the capture has seen."""
        parent_root = np.where(batch.is_outermost, np.uint64(0), batch.root)
        self._remember(
            (batch.event_id, batch.event_id, batch.root),
            (batch.parent, batch.parent, parent_root),
        )

    def visible_ancestors(self, batch: Batch, seen: Mask) -> VisibleAncestors:
        """The ranges that the capture sees around rows of a batch, drained with the open ranges,
        of which it sees ``seen``.
        """
        event_id = batch.event_id
        hidden = np.flatnonzero(~seen)
        order = hidden[np.argsort(event_id[hidden])]
        parent_in_span = batch.parent_in_span
        parent = follow_ids(batch.parent.copy(), event_id[order], batch.parent[order])
        # No span lies between.
        in_span = follow_ids(parent_in_span, event_id[order], parent_in_span[order]) != 0
        outside = (parent != 0) & ~is_in(parent, event_id)
        rows = np.flatnonzero(outside)
        wanted = parent[outside]
        nearest, nearest_root = self._find(wanted)
        parent[rows] = nearest
        root = event_id.copy()
        root[rows] = np.where(in_span[rows] & (nearest_root != 0), nearest_root, event_id[rows])
        root = _roots(event_id, parent, root, nested=in_span & ~outside)
        ended = np.flatnonzero(equals(batch.kind[: batch.closed], RowKind.RANGE))
        is_open = rows >= batch.closed
        exposed = np.where(seen, event_id, parent)
        exposed_root = np.where(seen | (root != event_id), root, np.uint64(0))
        self._remember(
            (event_id[ended], exposed[ended], exposed_root[ended]),
            (wanted[is_open], nearest[is_open], nearest_root[is_open]),
        )
        return VisibleAncestors(parent, root)

    def _remember(self, *columns: Columns) -> None:
        ids, nearest, root = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
        order = np.lexsort((root == 0, ids))  # of several of one id first the one that says more
        self._known = ids[order], nearest[order], root[order]

    def _find(self, wanted: Ids) -> tuple[Ids, Ids]:
        """The range that is seen nearest to each wanted one, and its root; 0 for those that
        aren't known.
        """
        ids, nearest, root = self._known
        if not len(ids):
            return np.zeros_like(wanted), np.zeros_like(wanted)
        position = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        known = ids[position] == wanted
        none = np.uint64(0)
        return np.where(known, nearest[position], none), np.where(known, root[position], none)


def _roots(event_id: Ids, parent: Ids, root: Ids, nested: Mask) -> Ids:
    """The root of each row: that of its outermost ancestor among the rows."""
    inner = np.flatnonzero(nested)
    order = inner[np.argsort(event_id[inner])]
    outermost = follow_ids(event_id.copy(), event_id[order], parent[order])
    in_order = np.argsort(event_id)
    found: Ids = root[in_order[np.searchsorted(event_id[in_order], outermost)]]
    return found


def follow_ids(ids: Ids, known: Ids, leads_to: Ids) -> Ids:
    """Each id, replaced by the id that it leads to, as long as it is among the known ones.

    The known ones are sorted.
    """
    rows = np.arange(len(ids)) if len(known) else np.zeros(0, np.int64)
    while len(rows):
        position = np.minimum(np.searchsorted(known, ids[rows]), len(known) - 1)
        found = known[position] == ids[rows]
        rows = rows[found]
        ids[rows] = leads_to[position[found]]
    return ids
