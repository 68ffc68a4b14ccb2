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
from otel_recfn.batches.stage import Decided, SpanPlan, Table
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource
from otel_recfn.model.generation import GENERATION
from otel_recfn.support.texts import values_by_key

PHASE = GENERATION + "phase"
UnitKey = tuple[int, int]


def decoding_in(batch: Batch, roots: Mapping[int, SpanContext]) -> Iterator[tuple[UnitKey, int, int, Mapping[str, Any]]]:
    """The ranges ``decode`` of a batch: each one's unit, and the arguments for ``Generation.add``.

    ``roots`` are those of ``Folding.add``.
    """
    rows = np.flatnonzero((batch.source == EventSource.MODULE) & (batch.step_number >= 0))
    columns = (batch.context, batch.root, batch.step_number, batch.end_ns, batch.attributes)
    for context, root, number, end_ns, text in zip(*[column[rows].tolist() for column in columns], strict=True):
        above = batch.contexts[context]
        span = roots.get(root) if above.trace_id == 0 else above
        if span is not None:
            yield (span.trace_id, span.span_id), number, end_ns, values_by_key(batch.names[text]) if text else {}


def add_to_unit(decided: Decided, number: int, attributes: Mapping[str, Any], prefill_ids: Sequence[int]) -> None:
    """Add attributes of a whole unit to its first prefill, or else to the span that is seen first.

    Args:
        decided: the units that were decided.
        number: the unit's place.
        attributes: of the whole unit.
        prefill_ids: the event ids of the first calls of its generations.
    """
    kept, summaries = decided.plan, decided.summaries
    is_prefill = is_in(summaries["first_id"], prefill_ids) & (summaries["count"] == 1)
    prefills = [np.flatnonzero(is_in(kept.batch.event_id, prefill_ids)), np.flatnonzero(is_prefill)]
    for places, found in zip(prefills, decided.further, strict=True):
        for place in places.tolist():
            found[place] = {PHASE: "prefill"}
    firsts = [(kind, int(places[0])) for kind, places in enumerate(prefills) if len(places)]
    first = firsts[0] if firsts else _first_span(number, kept, summaries)
    if first is not None and attributes:
        kind, place = first
        decided.further[kind].setdefault(place, {}).update(attributes)


def _first_span(number: int, plan: SpanPlan, summaries: Table) -> tuple[int, int] | None:
    """The span of a unit that is seen first: the longest one directly in it, whose ``folded.top`` is of all of it.

    Returns 0 and the place of a kept range, or 1 and that of a summary; None if the unit has no spans.
    """
    kept = np.flatnonzero(plan.above == number)
    outermost = kept[plan.parent[kept] == 0]
    kept = outermost if len(outermost) else kept[:1]
    sums = np.flatnonzero((summaries["unit"] == number) & (summaries["sums"] >= 0))
    rows = plan.row[kept]
    durations_ns = plan.batch.end_ns[rows] - plan.batch.start_ns[rows]
    if len(kept) and not (len(sums) and summaries["total_ns"][sums[0]] >= durations_ns.max()):
        return 0, int(kept[durations_ns.argmax()])
    return (1, int(sums[0])) if len(sums) else None
