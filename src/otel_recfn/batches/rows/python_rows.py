"""The Python twin of planning rows: a line of numpy for each thing that is decided.

Columns of 32-bit indices go through ``np.take``: where memory runs out, numpy was seen to crash where one was used in ``[]``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.announced import announced_column
from otel_recfn.batches.links.protocol import Links
from otel_recfn.batches.number_sets import distinct
from otel_recfn.batches.rows.protocol import Above, Begun, Fate, Fates, Ids, KnownContexts, Places, PlannedRows, SpanSums
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_MASK, EventFlag, EventKind, EventSource
from otel_recfn.support.span_ids import span_ids

_ORDINALS = np.uint64(ORDINAL_MASK)


class PythonRows:
    """See ``PlansRows``."""

    def fates(self, batch: Batch, contexts: KnownContexts) -> Fates:
        """What becomes of each row, as far as its context tells."""
        fates = np.where(batch.kind == EventKind.RANGE, np.take(contexts.fate, batch.context), np.uint8(Fate.OTHER_KIND))
        is_step = (np.take(contexts.of_step, batch.context) != 0) & (batch.source == EventSource.STEP) & (batch.parent == 0)
        fates[is_step & (fates == Fate.IN_SPAN)] = Fate.OTHER_KIND
        return fates

    def wanted(self, batch: Batch, fates: Fates) -> tuple[NDArray[np.uint32], Ids]:
        """The contexts of rows in a span, and the outermost ranges of those without one: each once, in ascending order."""
        return distinct(batch.context[fates == Fate.IN_SPAN]), distinct(batch.root[fates == Fate.ROOTLESS])

    def rows(self, batch: Batch, fates: Fates, of_step: Fates, above: Above, order: Places | None = None) -> PlannedRows:
        """The rows that become spans, in this order of the batch's rows, or as they stand."""
        place = np.where(fates == Fate.IN_SPAN, np.take(above.of_context, batch.context), np.int64(-1))
        rootless = np.flatnonzero(fates == Fate.ROOTLESS)
        place[rootless] = above.of_root[np.searchsorted(above.roots, batch.root[rootless])]
        fate = np.where((fates >= Fate.IN_SPAN) & (place < 0), np.uint8(Fate.UNSAMPLED), fates)
        row = np.flatnonzero(fate >= Fate.IN_SPAN) if order is None else order[fate[order] >= Fate.IN_SPAN]
        in_step = (np.take(of_step, batch.context[row]) != 0) & (batch.parent[row] == batch.root[row])
        return PlannedRows(fate, row, np.where(in_step, np.uint64(0), batch.parent[row]), place[row])

    def sums(self, batch: Batch, row: Places, above: Places, count: int) -> SpanSums:
        """What these rows tell, and of the spans above them, of which there are ``count``."""
        first_ns, last_ns = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
        np.minimum.at(first_ns, above, batch.start_ns[row])
        np.maximum.at(last_ns, above, batch.end_ns[row])
        outermost, failed = batch.parent[row] == 0, batch.flags[row] & np.uint32(EventFlag.ERROR) != 0
        rows, of_outermost, of_failed = [
            np.bincount(of, minlength=count).astype(np.int64) for of in (above, above[outermost], above[failed])
        ]
        return SpanSums(rows, first_ns, last_ns, of_outermost, of_failed, distinct(batch.name[row]))

    def linked_contexts(self, links: Links) -> NDArray[np.uint32]:
        """The contexts of what these links lead to, each once, in ascending order."""
        return distinct(links.context)

    def linked_roots(self, links: Links, fate: Fates) -> Ids:
        """The outermost ranges of those without a span, the same way; ``fate`` is by the number of a context."""
        return distinct(links.root[np.take(fate, links.context) == Fate.ROOTLESS])

    def linked(self, links: Links, fate: Fates, above: Above, row: Places, rows: int) -> tuple[Ids, Places]:
        """Of each of these rows out of so many: the span id that it links to, and where the span above that stands; else 0."""
        linked_id, linked_above = np.zeros(len(row), np.uint64), np.zeros(len(row), np.int64)
        fates = np.take(fate, links.context)
        place = np.where(fates == Fate.IN_SPAN, np.take(above.of_context, links.context), np.int64(-1))
        rootless = np.flatnonzero(fates == Fate.ROOTLESS)
        place[rootless] = above.of_root[np.searchsorted(above.roots, links.root[rootless])]
        place_of_row = np.full(rows, -1, np.int64)
        place_of_row[row] = np.arange(len(row))
        at = place_of_row[links.row]
        known = (place >= 0) & (at >= 0)
        linked_id[at[known]], linked_above[at[known]] = span_ids(links.event_id[known]), place[known]
        return linked_id, linked_above

    def ended(self, batch: Batch) -> Ids:
        """The outermost ranges among the rows."""
        ended: Ids = batch.event_id[(batch.parent == 0) & (batch.kind == EventKind.RANGE)]
        return ended

    def begun(self, batch: Batch) -> Begun:
        """Those that the batch announces."""
        counted = announced_column(batch, "source") != EventSource.STEP
        of_context = np.bincount(announced_column(batch, "context")[counted], minlength=len(batch.contexts))
        return Begun(announced_column(batch, "event_id")[counted], of_context.astype(np.int64, copy=False))

    def cross(self, batch: Batch) -> bool:
        """Whether rows stand before ones that ended earlier, and ranges lie in ones of other threads."""
        if (batch.end_ns[1:] >= batch.end_ns[:-1]).all():
            return False
        return bool(((batch.parent ^ batch.event_id > _ORDINALS) & (batch.parent != 0)).any())
