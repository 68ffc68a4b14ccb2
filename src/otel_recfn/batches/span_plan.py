"""The plan of the spans that rows become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import Indices, equals
from otel_recfn.batches.span_names import with_span_names
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import COLUMNS
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.model.generation import PHASE
from otel_recfn.support.span_ids import span_ids

Ids = NDArray[np.uint64]
COLUMN_BYTES = 400
"""The bytes of a column beside its values. In a unit of few spans they are much."""
OBJECTS_BYTES = 2400
"""The bytes of the objects around a plan without a row, whose batch is shared."""


class SpanPlan(NamedTuple):
    """The spans that rows become: columns of equal length, but for the last two fields."""

    batch: Batch
    row: Indices
    """The rows that become spans."""
    event_id: Ids
    """The event id that the span's id is made of: the row's own, but if the program saw the span of
    a backward node as the current one, the node's, in place of that of the range around it.
    """
    parent: Ids
    """The same of the parent range; 0 if the parent is the span above."""
    parent_span: Indices
    """Index into ``parent_spans``: the parent of the outermost range's span."""
    linked_id: Ids
    """The span id that the span links to; 0 for none."""
    linked_span: Indices
    """Index into ``parent_spans``: the span in whose trace the linked one is."""
    parent_spans: Sequence[SpanContext]
    torch_names: bool = False
    """Whether spans of module calls have torch.profiler's names."""

    def named(self, extra_attributes: Mapping[int, Mapping[str, Any]]) -> SpanPlan:
        """The same plan with the names of its spans, and the classes of module calls.

        ``extra_attributes`` are attributes, by row.
        """
        batch, rows = self.batch, self.row
        source = batch.source[rows]
        scope = batch.scope[rows]
        phases = equals(source, EventSource.COMPILATION) | equals(source, EventSource.TORCH) & (
            equals(scope, RecordScope.USER_SCOPE)
        )
        rows = rows[equals(source, EventSource.MODULE) | phases]
        if not len(rows):
            return self
        prefills = [row for row, attributes in extra_attributes.items() if PHASE in attributes]
        return self._replace(
            batch=with_span_names(batch, rows, torch_names=self.torch_names, prefills=prefills)
        )

    @property
    def span_id(self) -> Ids:
        """The id of each span. It is made when asked for, because most ranges get no span."""
        return span_ids(self.event_id)

    @property
    def parent_id(self) -> Ids:
        """The parent's span id."""
        if not len(self.row):
            return self.parent
        parent_span_id = np.array([span.span_id for span in self.parent_spans], np.uint64)
        return np.where(
            self.parent == 0, np.take(parent_span_id, self.parent_span), span_ids(self.parent)
        )

    def nbytes(self, texts: Iterable[str], more_columns: Sequence[NDArray[Any]] = ()) -> int:
        """The approximate bytes that it takes, with these texts and further columns."""
        nbytes = sum(map(len, texts))
        columns = [*more_columns]
        batch = self.batch
        if len(batch):
            columns += [getattr(self, name) for name in self._fields[1:-2]]
            columns += [
                getattr(batch, column.name) for column in COLUMNS if not batch.is_empty(column)
            ]
        else:
            nbytes += OBJECTS_BYTES
        return nbytes + sum([COLUMN_BYTES + column.nbytes for column in columns])

    def part(self, which: slice | Indices) -> SpanPlan:
        """A plan of some of the spans."""
        columns = {name: getattr(self, name)[which] for name in self._fields[1:-2]}
        return self._replace(**columns)
