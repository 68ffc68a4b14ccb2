"""Plans to spans in bytes: natively, and by way of the SDK's spans where limits cut them, with the same bytes.

plan ──► native/otlp, from columns ──────────────┐
     └─► SpanMapper ──► span_bytes, from objects ┴─► EncodedSpans
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn import _native
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.tables import Track
from otel_recfn.sinks.otlp.encoded import EncodedSpans, encoded
from otel_recfn.sinks.otlp.fragments import SPAN_ATTRIBUTES, Fragments
from otel_recfn.sinks.otlp.span_bytes import attribute_fields, trace_state_field
from otel_recfn.sinks.spans.mapping import MAX_KEPT_BASES, NOTHING_TOLD, SpanMapper
from otel_recfn.sinks.spans.provider import AttributeValue, SpanTarget
from otel_recfn.support.span_ids import current_key


class OtlpMapper(SpanMapper):
    """Encodes spans for one target. What its limits cut goes by way of the SDK's spans, which are cut already."""

    def __init__(self, target: SpanTarget) -> None:
        super().__init__(target)
        self._base_fields: dict[tuple[int, Track], bytes] = {}

    def spans(  # type: ignore[override]
        self, plan: SpanPlan, told: Mapping[int, Mapping[str, AttributeValue]] = NOTHING_TOLD
    ) -> EncodedSpans:
        """The spans of a plan, in its order.

        Args:
            plan: the plan.
            told: further attributes, by row.
        """
        if not self._limits.unbound:
            return encoded(super().spans(plan, told))
        columns = (plan.row, plan.parent, plan.above, plan.linked_id, plan.linked_above)
        above = [_above(span) for span in plan.spans_above]
        further = (
            {row: attribute_fields(SPAN_ATTRIBUTES, told[row]) for row in plan.row.tolist() if row in told} if told else {}
        )
        fragments = Fragments(plan.batch, self._fields_of)
        made: Any = _native.encode_otlp_spans(plan.batch, columns, above, current_key(), fragments, further)
        data, ends = made
        self._bound_caches()
        return EncodedSpans(memoryview(data), np.frombuffer(ends, np.int64))

    def _fields_of(self, scope: int, thread: Track) -> bytes:
        found = self._base_fields.get((scope, thread))
        if found is None:
            found = self._base_fields[scope, thread] = attribute_fields(SPAN_ATTRIBUTES, self.base(scope, thread))
        return found

    def _bound_caches(self) -> None:
        super()._bound_caches()
        if len(self._base_fields) > MAX_KEPT_BASES:
            self._base_fields.clear()


def _above(span: SpanContext) -> tuple[bytes, bytes, int]:
    """What the spans below it have of it."""
    return span.trace_id.to_bytes(16, "big"), trace_state_field(span.trace_state), span.span_id
