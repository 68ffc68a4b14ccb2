"""Spans for every range, at once: where units have no budget (``span_budget=None``), nothing waits
for the end of its unit, and nothing but what runs in compilations is folded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.batches.stage import Added, OwnRoot, Stage
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag
from otel_recfn.sinks.spans.sender import DecidedUnits, roots_alone
from otel_recfn.sinks.spans.span_hook import FOLDED_COUNT, FOLDED_NS
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.support.recent_entries import remember

ROWS_AT_ONCE = 1 << 15
"""The rows that wait as one unit."""
MAX_INSIDE = 4096
"""The most open ranges of which it is remembered what ran in compilations inside."""


class EveryRange:
    """The stand-in for ``Folding`` where units have no budget.

    ``parents_first``: those of a batch come before their children. A hook can drop a span only
    before its children are sent.
    """

    def __init__(self, *, torch_names: bool = False, parents_first: bool = False) -> None:
        self._stage = Stage(budget=0, torch_names=torch_names)
        self._parents_first = parents_first
        self._names: Sequence[str] = ()
        self._named = 0
        """The number of names in the batches until now, of the list that they share."""
        self._inside: dict[int, tuple[int, int]] = {}
        """The number and time of what ran in compilations, by the event ids of the ranges around
        that haven't ended.
        """

    def add(
        self, batch: Batch, roots: Sequence[OwnRoot], *, continues: bool = False
    ) -> tuple[Added, list[DecidedUnits]]:
        """All of a batch but what ran in compilations, so many at a time.

        In the order of the rows' ends, or, if parents come first, of their begins.
        """
        plan, added = self._stage.plan(batch, roots)
        plan, sums = self._fold_inside(plan)
        if self._parents_first:
            plan = plan.part(np.lexsort((batch.event_id[plan.row], batch.start_ns[plan.row])))
        added = added._replace(planned=len(plan.row))
        if len(plan.row) < len(batch):  # so that what waits keeps nothing of the other rows alive
            plan = plan._replace(batch=batch.take(plan.row), row=np.arange(len(plan.row)))
        parts = [
            plan.part(slice(first, first + ROWS_AT_ONCE))
            for first in range(0, added.planned, ROWS_AT_ONCE)
        ]
        nbytes = plan.nbytes(self._new_texts(batch.names))
        sizes = [(one, len(one.row)) for one in parts]
        return added, [
            DecidedUnits(one, sums=sums, ranges=rows, nbytes=nbytes * rows // added.planned)
            for one, rows in sizes
        ]

    def _fold_inside(self, plan: SpanPlan) -> tuple[SpanPlan, dict[int, Mapping[str, int]]]:
        """The plan without what ran in compilations, and the sums of that, by the event ids of
        the ranges around.
        """
        batch, rows = plan.batch, plan.row
        is_inside = batch.flags[rows] & np.uint32(EventFlag.IN_COMPILATION) != 0
        if not self._inside and not is_inside.any():
            return plan, {}
        sums = dict[int, Mapping[str, int]]()
        columns = (
            is_inside,
            batch.event_id[rows],
            plan.parent,
            batch.end_ns[rows] - batch.start_ns[rows],
        )
        for inside, event_id, parent, duration_ns in zip(
            *[column.tolist() for column in columns], strict=True
        ):
            count, took_ns = self._inside.pop(event_id, (0, 0))
            if inside:
                sibling_count, siblings_ns = self._inside.get(parent, (0, 0))
                remember(
                    self._inside,
                    parent,
                    (sibling_count + count + 1, siblings_ns + max(0, duration_ns)),
                    MAX_INSIDE,
                )
            elif count:
                sums[event_id] = {FOLDED_COUNT: count, FOLDED_NS: took_ns}
        return plan.part(np.flatnonzero(~is_inside)), sums

    def _new_texts(self, names: Sequence[str]) -> Sequence[str]:
        """The names that no batch had before."""
        known = self._named if names is self._names else 0
        self._names = names
        self._named = len(names)
        return names[known : self._named]

    def has_unit(self, span: SpanContext) -> bool:
        """Whether ranges below a span wait for others."""
        return False

    def due(
        self,
        finished: Sequence[StepTrace],
        drained_ns: int = 0,
        *,
        is_idle: bool = False,
        flushes: bool = False,
        ends: bool = False,
    ) -> list[DecidedUnits]:
        """The roots of traces that are complete: nothing else waits."""
        return [roots_alone(finished)] if finished else []
