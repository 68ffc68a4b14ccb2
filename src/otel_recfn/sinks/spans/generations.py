"""The generations of units, from their ranges ``decode``. The first one of a generation has the attributes of what was before.

unit  ──[model: 20 tokens]──[decode 2]──[decode 3]──[decode 4]──
        prefill
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.stage import Decided
from otel_recfn.model.batch import Batch
from otel_recfn.model.columns import COLUMNS
from otel_recfn.model.events import EventSource
from otel_recfn.model.generation import PHASE, PREFILL, Generation
from otel_recfn.support.texts import values_by_key

UnitKey = tuple[int, int]
(_STEP_NUMBER,) = [column for column in COLUMNS if column.name == "step_number"]


def decoding_in(batch: Batch, roots: Mapping[int, SpanContext]) -> Iterator[tuple[UnitKey, int, int, Mapping[str, Any]]]:
    """The ranges ``decode`` of a batch: each one's unit, and the arguments for ``Generation.add``.

    ``roots`` are those of ``Folding.add``.
    """
    if batch.is_empty(_STEP_NUMBER):
        return
    rows = np.flatnonzero((batch.source == EventSource.MODULE) & (batch.step_number >= 0))
    columns = (batch.context, batch.root, batch.step_number, batch.end_ns, batch.attributes)
    for context, root, number, end_ns, text in zip(*[column[rows].tolist() for column in columns], strict=True):
        above = batch.contexts[context]
        span = roots.get(root) if above.trace_id == 0 else above
        if span is not None:
            yield (span.trace_id, span.span_id), number, end_ns, values_by_key(batch.names[text]) if text else {}


def add_generations(decided: Decided, generations: Mapping[int, Generation], further: Mapping[int, Mapping[str, Any]]) -> None:
    """Add the attributes of generations.

    Args:
        decided: the units that were decided.
        generations: their generations, by the units' places.
        further: attributes for the span of the first call, or else for the unit's longest span, by the units' places.
    """
    summaries, first_spans = decided.summaries, decided.first_spans
    ids = np.concatenate([decided.plan.batch.event_id, np.where(summaries["count"] == 1, summaries["first_id"], np.uint64(0))])
    for unit, generation in generations.items():
        prefills = np.flatnonzero(is_in(ids, generation.prefill_ids)).tolist()
        for span in prefills:
            decided.further[span] = {**decided.further.get(span, {}), PHASE: PREFILL}
        first = prefills[0] if prefills else first_spans.get(unit)
        if first is not None and further.get(unit):
            decided.further[first] = {**decided.further.get(first, {}), **further[unit]}
