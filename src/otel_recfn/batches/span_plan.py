"""A plan of spans: which rows of a batch become spans, below which span, in which trace, linked to what. All in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.columns import COLUMNS
from otel_recfn.model.events import ContextFlag
from otel_recfn.support.span_ids import span_ids

Ids = NDArray[np.uint64]
Places = NDArray[np.int64]
COLUMN_BYTES = 400
"""What a column takes beside its values, with what holds it: much of a unit that has few spans."""
OBJECTS_BYTES = 1600
"""What the objects around a plan without a row take, whose batch is shared."""
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SUPPRESSED, _SAMPLED = int(ContextFlag.SUPPRESSED), int(ContextFlag.SAMPLED)


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


_WITHOUT, _ROOTLESS, _IN_SPAN, _UNSAMPLED = Fate.SUPPRESSED, Fate.ROOTLESS, Fate.IN_SPAN, Fate.UNSAMPLED


class SpanPlan(NamedTuple):
    """Columns of equal length, but for the last field."""

    batch: Batch
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

    def nbytes(self, texts: Iterable[str], beside: Sequence[NDArray[Any]] = ()) -> int:
        """About what it takes in memory, with these texts, and columns beside its own."""
        nbytes, columns = sum(map(len, texts)), [*beside]
        if len(self.batch):
            columns += [getattr(self, name) for name in self._fields[1:-1]]
            columns += [getattr(self.batch, column.name) for column in COLUMNS if not self.batch.is_empty(column)]
        else:
            nbytes += OBJECTS_BYTES
        return nbytes + sum([COLUMN_BYTES + column.nbytes for column in columns])

    def part(self, which: slice | Places) -> SpanPlan:
        """Some of the spans."""
        columns = {name: getattr(self, name)[which] for name in self._fields[1:-1]}
        return self._replace(**columns)


def fate_of(context: SpanContextRef) -> Fate:
    """What becomes of ranges in a context."""
    flags = int(context.flags)  # an operation on an IntFlag, or finding a member, costs as much as 20 rows
    if flags & _SUPPRESSED:
        return _WITHOUT
    if context.trace_id == 0:
        return _ROOTLESS
    return _IN_SPAN if flags & _SAMPLED else _UNSAMPLED


def span_context(context: SpanContextRef) -> SpanContext:
    """The program's span that a context stands for."""
    state = TraceState.from_header([context.trace_state]) if context.trace_state else None
    return SpanContext(context.trace_id, context.span_id, False, SAMPLED, state)
