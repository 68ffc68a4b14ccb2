"""Spans that were sent, as examples of the series that their ranges belong to: of each the longest since the last time."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, TraceFlags

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import EventFlag
from otel_recfn.model.scope import NUM_SCOPES
from otel_recfn.sinks.metrics.sdk_streams import Exemplar
from otel_recfn.sinks.metrics.series import MAX_SERIES, Series
from otel_recfn.support.json_text import text_of_utf8

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SentSpans:
    """One thread notes, any takes: a dict is replaced whole, so that neither waits for the other.

    Attributes:
        wanted: whether anybody takes them.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._longest: dict[Series, Exemplar] = {}

    def note(self, plan: SpanPlan) -> None:
        """The spans of a plan have been handed to the processors."""
        if self.wanted:
            with suppress(*OUT_OF_MEMORY):
                self._note(plan)

    def _note(self, plan: SpanPlan) -> None:
        batch, longest = plan.batch, self._longest
        duration = np.maximum(batch.end_ns[plan.row] - batch.start_ns[plan.row], 0)
        for place in _longest_of_each(plan, duration).tolist():
            row, ns = int(plan.row[place]), int(duration[place])
            if batch.flags[row] & EventFlag.PARTIAL:
                continue
            series = Series(int(batch.scope[row]), text_of_utf8(batch.names[batch.name[row]]))
            known = longest.get(series)
            if known.duration_ns < ns if known is not None else len(longest) < MAX_SERIES:
                above = plan.spans_above[plan.above[place]]
                span = SpanContext(above.trace_id, int(plan.span_id[place]), False, _SAMPLED)
                longest[series] = Exemplar(ns, max(0, int(batch.end_ns[row])), span)

    def take(self) -> dict[Series, Exemplar]:
        """Those since the last time."""
        fresh: dict[Series, Exemplar] = {}
        taken, self._longest = self._longest, fresh
        return taken


def _longest_of_each(plan: SpanPlan, duration: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of the longest span of each name and scope."""
    key = plan.batch.name[plan.row].astype(np.int64) * NUM_SCOPES + plan.batch.scope[plan.row]
    order = np.lexsort((duration, key))
    ordered = key[order]
    last: NDArray[np.intp] = order[np.append(ordered[1:] != ordered[:-1], np.ones(min(1, len(ordered)), np.bool_))]
    return last
