"""The native twin of planning rows: ``_native``'s functions, their columns as numpy sees them. They work without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.rows.protocol import Above, Fates, Ids, KnownContexts, Places, PlannedRows, SpanSums
from otel_recfn.model.batch import Batch


class NativeRows:
    """See ``PlansRows``."""

    def fates(self, batch: Batch, contexts: KnownContexts) -> Fates:
        """What becomes of each row, as far as its context tells."""
        return _column(_native.plan_fates(batch, *contexts), np.uint8)

    def wanted(self, batch: Batch, fates: Fates) -> tuple[NDArray[np.uint32], Ids]:
        """The contexts of rows in a span, and the outermost ranges of those without one: each once, in ascending order."""
        contexts, roots = _native.plan_wanted(batch, fates, len(batch.contexts))
        return _column(contexts, np.uint32), _column(roots, np.uint64)

    def rows(self, batch: Batch, fates: Fates, of_step: Fates, above: Above, order: Places | None = None) -> PlannedRows:
        """The rows that become spans, in this order of the batch's rows, or as they stand."""
        fate, row, parent, place = _native.plan_rows(batch, fates, of_step, *above, order)
        return PlannedRows(
            _column(fate, np.uint8), _column(row, np.int64), _column(parent, np.uint64), _column(place, np.int64)
        )

    def sums(self, batch: Batch, row: Places, above: Places, count: int) -> SpanSums:
        """What these rows tell, and of the spans above them, of which there are ``count``."""
        *raw, name = _native.plan_sums(batch, row, above, count, len(batch.names))
        rows, first_ns, last_ns, outermost, failed = [_column(column, np.int64) for column in raw]
        return SpanSums(rows, first_ns, last_ns, outermost, failed, _column(name, np.uint32))


def _column(raw: Any, kind: Any) -> NDArray[Any]:
    return np.frombuffer(raw, kind)
