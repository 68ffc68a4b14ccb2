"""The Python twin of planning rows: a line of numpy for each thing that is decided.

Columns of 32-bit indices go through ``np.take``: where memory runs out, numpy was seen to crash where one was used in ``[]``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct
from otel_recfn.batches.rows.protocol import Above, Fate, Fates, Ids, KnownContexts, Places, PlannedRows, SpanSums
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, EventKind, EventSource


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
