"""The contract of planning rows, which both twins keep."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.links.protocol import Links
from otel_recfn.model.batch import Batch

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


class PlansRows(Protocol):
    """Of one batch at a time. What indexes nothing is an IndexError."""

    def fates(self, batch: Batch, contexts: KnownContexts) -> Fates:
        """What becomes of each row, as far as its context tells."""

    def wanted(self, batch: Batch, fates: Fates) -> tuple[NDArray[np.uint32], Ids]:
        """The contexts of rows in a span, and the outermost ranges of those without one: each once, in ascending order."""

    def rows(self, batch: Batch, fates: Fates, of_step: Fates, above: Above, order: Places | None = None) -> PlannedRows:
        """The rows that become spans, in this order of the batch's rows, or as they stand; ``of_step`` as in KnownContexts."""

    def sums(self, batch: Batch, row: Places, above: Places, count: int) -> SpanSums:
        """What these rows tell, and of the spans above them, of which there are ``count``."""

    def linked_contexts(self, links: Links) -> NDArray[np.uint32]:
        """The contexts of what these links lead to, each once, in ascending order."""

    def linked_roots(self, links: Links, fate: Fates) -> Ids:
        """The outermost ranges of those without a span, the same way; ``fate`` is by the number of a context."""

    def linked(self, links: Links, fate: Fates, above: Above, row: Places, rows: int) -> tuple[Ids, Places]:
        """Of each of these rows out of so many: the span id that it links to, and where the span above that stands; else 0."""

    def ended(self, batch: Batch) -> Ids:
        """The outermost ranges among the rows."""

    def begun(self, batch: Batch) -> Begun:
        """Those that the batch announces."""

    def cross(self, batch: Batch) -> bool:
        """Whether rows stand before ones that ended earlier, and ranges lie in ones of other threads."""
