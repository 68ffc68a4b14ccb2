"""What becomes of each row of a batch, and above which span: ``_native``'s functions, their columns as numpy sees them.

They work without the GIL. What indexes nothing is an IndexError.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.announced import announced_column
from otel_recfn.batches.links import Links
from otel_recfn.model.batch import Batch
from otel_recfn.support.span_ids import current_key

Ids = NDArray[np.uint64]
Places = NDArray[np.int64]
Fates = NDArray[np.uint8]


class Fate(IntEnum):
    """What becomes of a row. From ``IN_SPAN`` on: a span."""

    OTHER_KIND = 0
    """Nothing: it is a mark, a change of memory, or a step, whose span the program has."""
    SUPPRESSED = 1
    """Nothing: instrumentation was suppressed."""
    UNSAMPLED = 2
    """Nothing: its trace is not recorded."""
    IN_SPAN = 3
    """A span below the one that was current when the outermost range began."""
    ROOTLESS = 4
    """No span was current: a span in a trace of our own, if there is one. It is the largest."""


class KnownContexts(NamedTuple):
    """Columns by the number of a batch's context."""

    fate: Fates
    """Of ranges in it."""
    of_step: NDArray[np.uint8]
    """1 where it is the context of a step that has a span of the program's."""


class Above(NamedTuple):
    """Where spans stand that rows are children of; -1 where there is none."""

    of_context: Places
    """By the number of a context."""
    roots: Ids
    """Outermost ranges, in ascending order."""
    of_root: Places


class PlannedRows(NamedTuple):
    """Columns; all but the first one are of the rows that become spans."""

    fate: Fates
    """Of all rows. Those above which there is no span are ``UNSAMPLED``."""
    row: Places
    parent: Ids
    above: Places


class SpanSums(NamedTuple):
    """What rows tell together: columns by ``above``, but for the last one."""

    rows: Places
    first_ns: Places
    """When the first began; the largest number there is where there are no rows."""
    last_ns: Places
    """When the last ended; 0 where there are no rows."""
    outermost: Places
    failed: Places
    """How many were left by an exception."""
    name: NDArray[np.uint32]
    """The names of the rows, as the batch numbers them, each once and in ascending order."""


class Begun(NamedTuple):
    """Outermost ranges that a batch announces, but for the program's steps, whose spans the program has."""

    event_id: Ids
    of_context: Places
    """How many there are, by the number of a context."""


def fates_of_rows(batch: Batch, contexts: KnownContexts) -> Fates:
    """What becomes of each row, as far as its context tells."""
    return _column(_native.plan_fates(batch, *contexts), np.uint8)


def wanted_above(batch: Batch, fates: Fates) -> tuple[NDArray[np.uint32], Ids]:
    """The contexts of rows in a span, and the outermost ranges of those without one: each once, in ascending order."""
    contexts, roots = _native.plan_wanted(batch, fates, len(batch.contexts))
    return _column(contexts, np.uint32), _column(roots, np.uint64)


def planned_rows(batch: Batch, fates: Fates, of_step: Fates, above: Above, order: Places | None = None) -> PlannedRows:
    """The rows that become spans, in this order of the batch's rows, or as they stand; ``of_step`` as in KnownContexts."""
    fate, row, parent, place = _native.plan_rows(batch, fates, of_step, *above, order)
    return PlannedRows(_column(fate, np.uint8), _column(row, np.int64), _column(parent, np.uint64), _column(place, np.int64))


def sums_above(batch: Batch, row: Places, above: Places, count: int) -> SpanSums:
    """What these rows tell, and of the spans above them, of which there are ``count``."""
    *raw, name = _native.plan_sums(batch, row, above, count, len(batch.names))
    rows, first_ns, last_ns, outermost, failed = [_column(column, np.int64) for column in raw]
    return SpanSums(rows, first_ns, last_ns, outermost, failed, _column(name, np.uint32))


def linked_contexts(links: Links) -> NDArray[np.uint32]:
    """The contexts of what these links lead to, each once, in ascending order."""
    return _column(_native.linked_contexts(links, len(links.contexts)), np.uint32)


def linked_roots(links: Links, fate: Fates) -> Ids:
    """The outermost ranges of those without a span, the same way; ``fate`` is by the number of a context."""
    return _column(_native.linked_roots(links, fate), np.uint64)


def linked_rows(links: Links, fate: Fates, above: Above, row: Places, rows: int) -> tuple[Ids, Places]:
    """Of each of these rows out of so many: the span id that it links to, and where the span above that stands; else 0."""
    linked_id, linked_above = _native.linked_rows(links, fate, *above, row, rows, current_key())
    return _column(linked_id, np.uint64), _column(linked_above, np.int64)


def outermost_ended(batch: Batch) -> Ids:
    """The outermost ranges among the rows."""
    return _column(_native.outermost_ended(batch), np.uint64)


def outermost_begun(batch: Batch) -> Begun:
    """Those that the batch announces."""
    source, event_id, context = [announced_column(batch, name) for name in ("source", "event_id", "context")]
    began, of_context = _native.outermost_begun(source, event_id, context, len(batch.contexts))
    return Begun(_column(began, np.uint64), _column(of_context, np.int64))


def rows_cross(batch: Batch) -> bool:
    """Whether rows stand before ones that ended earlier, and ranges lie in ones of other threads."""
    return _native.rows_cross(batch)


def _column(raw: Any, kind: Any) -> NDArray[Any]:
    return np.frombuffer(raw, kind)
