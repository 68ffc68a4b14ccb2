"""The native twin of planning rows: ``_native``'s functions, their columns as numpy sees them. They work without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.announced import announced_column
from otel_recfn.batches.links.protocol import Links
from otel_recfn.batches.rows.protocol import Above, Begun, Fates, Ids, KnownContexts, Places, PlannedRows, SpanSums
from otel_recfn.model.batch import Batch
from otel_recfn.support.span_ids import current_key


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

    def linked_contexts(self, links: Links) -> NDArray[np.uint32]:
        """The contexts of what these links lead to, each once, in ascending order."""
        return _column(_native.linked_contexts(links, len(links.contexts)), np.uint32)

    def linked_roots(self, links: Links, fate: Fates) -> Ids:
        """The outermost ranges of those without a span, the same way; ``fate`` is by the number of a context."""
        return _column(_native.linked_roots(links, fate), np.uint64)

    def linked(self, links: Links, fate: Fates, above: Above, row: Places, rows: int) -> tuple[Ids, Places]:
        """Of each of these rows out of so many: the span id that it links to, and where the span above that stands; else 0."""
        linked_id, linked_above = _native.linked_rows(links, fate, *above, row, rows, current_key())
        return _column(linked_id, np.uint64), _column(linked_above, np.int64)

    def ended(self, batch: Batch) -> Ids:
        """The outermost ranges among the rows."""
        return _column(_native.outermost_ended(batch), np.uint64)

    def begun(self, batch: Batch) -> Begun:
        """Those that the batch announces."""
        source, event_id, context = [announced_column(batch, name) for name in ("source", "event_id", "context")]
        began, of_context = _native.outermost_begun(source, event_id, context, len(batch.contexts))
        return Begun(_column(began, np.uint64), _column(of_context, np.int64))

    def cross(self, batch: Batch) -> bool:
        """Whether rows stand before ones that ended earlier, and ranges lie in ones of other threads."""
        return _native.rows_cross(batch)


def _column(raw: Any, kind: Any) -> NDArray[Any]:
    return np.frombuffer(raw, kind)
