"""The attributes of whole units, on one of their spans; and their generations, from their ranges ``decode``.

unit  ──[model: 20 tokens]──[decode 2]──[decode 3]──[decode 4]──
        prefill
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.stage import Decided
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource
from otel_recfn.model.generation import PHASE, PREFILL
from otel_recfn.support.texts import values_by_key

UnitKey = tuple[int, int]


def decoding_in(
    batch: Batch, roots: Mapping[int, SpanContext]
) -> Iterator[tuple[UnitKey, int, int, Mapping[str, Any]]]:
    """The ranges ``decode`` of a batch: each one's unit, and the arguments for ``Generation.add``.

    ``roots`` are those of ``Folding.add``.
    """
    rows = np.flatnonzero((batch.source == EventSource.MODULE) & (batch.step_number >= 0))
    columns = (batch.context, batch.root, batch.step_number, batch.end_ns, batch.attributes)
    for context, root, number, end_ns, text in zip(
        *[column[rows].tolist() for column in columns], strict=True
    ):
        above = batch.contexts[context]
        span = roots.get(root) if above.trace_id == 0 else above
        if span is not None:
            yield (
                (span.trace_id, span.span_id),
                number,
                end_ns,
                values_by_key(batch.names[text]) if text else {},
            )


def add_to_unit(
    decided: Decided, unit: int, attributes: Mapping[str, Any], prefill_ids: Sequence[int]
) -> None:
    """Add attributes of a whole unit to its first prefill, or else to the span that is seen first.

    ``unit`` is its place among those that were decided, ``prefill_ids`` the event ids of the first calls of its generations.
    """
    summaries = decided.summaries
    ids = np.concatenate(
        [
            decided.plan.batch.event_id,
            np.where(summaries["count"] == 1, summaries["first_id"], np.uint64(0)),
        ]
    )
    prefills = np.flatnonzero(is_in(ids, prefill_ids)).tolist()
    for span in prefills:
        decided.further[span] = {PHASE: PREFILL}
    first = prefills[0] if prefills else decided.first_spans.get(unit)
    if first is not None and attributes:
        decided.further.setdefault(first, {}).update(attributes)
