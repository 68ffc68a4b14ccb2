"""Every range as a span of its own: nothing is folded, and no span waits for the end of its unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.trace import SpanContext

from otel_recfn.batches.stage import Added, Stage
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.decided import DecidedUnits, KeptSpans, roots_alone
from otel_recfn.sinks.spans.trace_boundaries import StepTrace


class EveryRange:
    """In place of ``Folding``, where units have no budget."""

    def __init__(self) -> None:
        self._stage = Stage(budget=0)

    def add(self, batch: Batch, roots: Mapping[int, SpanContext]) -> tuple[Added, list[DecidedUnits]]:
        """All of it, in the order of the rows' ends."""
        plan, added = self._stage.plan(batch, roots)
        return added, [DecidedUnits([KeptSpans(plan)], added.planned)] if added.planned else []

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
