"""Spans that were sent, as examples of the series that their ranges belong to: of each the longest since the last time."""

from __future__ import annotations

import numpy as np
from opentelemetry.trace import SpanContext, TraceFlags

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.events import NUM_SCOPES, EventFlag
from otel_recfn.sinks.metrics.sdk_streams import Exemplar
from otel_recfn.sinks.metrics.series import MAX_SERIES, Series
from otel_recfn.support.span_ids import span_id
from otel_recfn.support.texts import text_of_utf8

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_PARTIAL = np.uint32(EventFlag.PARTIAL)


class SentSpans:
    """One thread notes, any takes: what was found is replaced whole, so that neither waits for the other.

    Attributes:
        wanted: whether anybody takes them.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._longest: dict[Series, Exemplar] = {}

    def note(self, plan: SpanPlan) -> None:
        """The spans of a plan have been handed to the processors."""
        if not self.wanted:
            return
        batch, rows, longest = plan.batch, plan.row, self._longest
        durations = np.where(batch.flags[rows] & _PARTIAL, -1, np.maximum(batch.end_ns[rows] - batch.start_ns[rows], 0))
        order = np.argsort(durations)
        keys = batch.name[rows].astype(np.int64) * NUM_SCOPES + batch.scope[rows]
        for key, place in dict(zip(keys[order].tolist(), order.tolist(), strict=True)).items():  # of each key the longest
            name, scope = divmod(key, NUM_SCOPES)
            series, ns = Series(scope, text_of_utf8(batch.names[name])), int(durations[place])
            kept = longest.get(series)
            if ns > kept.duration_ns if kept is not None else ns >= 0 and len(longest) < MAX_SERIES:
                longest[series] = _exemplar(plan, place, ns)

    def take(self) -> dict[Series, Exemplar]:
        """Those since the last time."""
        taken, self._longest = self._longest, {}
        return taken


def _exemplar(plan: SpanPlan, place: int, ns: int) -> Exemplar:
    batch, row, above = plan.batch, plan.row[place], plan.spans_above[plan.above[place]]
    span = SpanContext(above.trace_id, span_id(int(batch.event_id[row])), False, _SAMPLED)
    return Exemplar(ns, max(0, int(batch.end_ns[row])), span)
