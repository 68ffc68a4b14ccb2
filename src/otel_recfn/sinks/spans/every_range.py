"""Every range as a span of its own: nothing is folded, and no span waits for the end of its unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.decided import DecidedUnits, KeptSpans, roots_alone
from otel_recfn.sinks.spans.trace_boundaries import StepTrace


class EveryRange:
    """In place of ``Folding``, where units have no budget."""

    def begin_batch(self, batch: Batch) -> None:
        """Nothing is to be noted."""

    def add(self, plan: SpanPlan) -> list[DecidedUnits]:
        """All of it, in the order of the rows' ends."""
        if not len(plan.row):
            return []
        if len(plan.row) < len(plan.batch):  # what waits is to keep nothing of the others
            plan = plan._replace(batch=plan.batch.take(plan.row), row=np.arange(len(plan.row)))
        return [DecidedUnits([KeptSpans(plan, None, np.zeros(len(plan.row), np.int64))], len(plan.row))]

    def note_drained(self, drained_ns: int) -> None:
        """Nothing waits for it."""

    def rest(self) -> None:
        """Nothing waits for it."""

    def due(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """The roots of traces that are complete."""
        return roots_alone(finished, ())

    def all(self, finished: Sequence[StepTrace]) -> list[DecidedUnits]:
        """The same: nothing else is left."""
        return roots_alone(finished, ())
