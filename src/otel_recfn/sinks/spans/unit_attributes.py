"""The attributes of whole units, on one of their spans; and their generations, from their ranges
``decode``.

unit  ──[model: 20 tokens]──[decode 2]──[decode 3]──[decode 4]──
        prefill
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.number_sets import equals, is_in
from otel_recfn.batches.stage import Decided, OwnRoot, find_root
from otel_recfn.model.batch import Batch, SpanContextRef
from otel_recfn.model.events import EventSource
from otel_recfn.model.generation import PHASE, PREFILL, GenerationStart
from otel_recfn.support.texts import values_by_key

Decoding = tuple[SpanContext | SpanContextRef, int, int, GenerationStart | None]


def decoding_in(batch: Batch, roots: Sequence[OwnRoot]) -> Iterator[Decoding]:
    """The ranges ``decode`` of a batch: the span above each one's unit, and the arguments for
    ``Generation.add``.

    ``roots`` are those of ``Folding.add``.
    """
    is_decode = equals(batch.source, EventSource.MODULE) & (batch.step_number >= 0)
    for row in np.flatnonzero(is_decode).tolist():
        parent_span = batch.contexts[batch.context[row]]
        span: SpanContext | SpanContextRef | None = parent_span
        if parent_span.trace_id == 0:
            own_root = find_root(roots, int(batch.root[row]))
            span = own_root.context if own_root is not None else None
        if span is not None:
            text = batch.names[batch.generation[row]]
            start = GenerationStart(**values_by_key(text)) if text else None
            yield span, int(batch.step_number[row]), int(batch.end_ns[row]), start


def add_to_unit(
    decided: Decided,
    unit: int,
    attributes: Mapping[str, Any],
    generated: Mapping[str, Any],
    prefill_ids: Sequence[int],
) -> None:
    """Add the attributes of a whole unit to its first span.

    The attributes of its generations go to its first prefill. If that has no span, they go to the
    first span, too.

    Args:
        decided: the units that were decided together.
        unit: the index of this one among them.
        attributes: those of the unit.
        generated: those of its generations.
        prefill_ids: the event ids of the first calls of its generations.
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
        decided.extra_attributes[span] = {PHASE: PREFILL}
    first = decided.first_spans.get(unit)
    for span, found in ((first, attributes), (prefills[0] if prefills else first, generated)):
        if span is not None and found:
            decided.extra_attributes.setdefault(span, {}).update(found)
