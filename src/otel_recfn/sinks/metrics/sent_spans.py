"""Spans that were sent, as examples of the series that their ranges belong to: of each the longest since the last time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, TraceFlags

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag
from otel_recfn.model.scope import NUM_SCOPES
from otel_recfn.sinks.metrics.sdk_streams import Exemplar
from otel_recfn.sinks.metrics.series import MAX_SERIES, Series
from otel_recfn.support.json_text import text_of_utf8
from otel_recfn.support.span_ids import span_id

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_PARTIAL = np.uint32(EventFlag.PARTIAL)


class SentSpans:
    """One thread notes, any takes: what was found is replaced whole, so that neither waits for the other.

    Attributes:
        wanted: whether anybody takes them.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._longest = _Longest()

    def note(self, plan: SpanPlan) -> None:
        """The spans of a plan have been handed to the processors."""
        if self.wanted:
            self._longest.note(plan)

    def take(self) -> dict[Series, Exemplar]:
        """Those since the last time."""
        taken, self._longest = self._longest, _Longest()
        return taken.found


class _Longest:
    """The longest of each series."""

    def __init__(self) -> None:
        self.found: dict[Series, Exemplar] = {}
        self._names: Sequence[str] = ()
        self._known_ns: NDArray[np.int64] = np.zeros(0, np.int64)
        """Of each ``name * NUM_SCOPES + scope``: most spans are known to be shorter by a look at it."""

    def note(self, plan: SpanPlan) -> None:
        """Look at the spans of a plan."""
        batch, rows = plan.batch, plan.row
        known = self._known(batch)
        keys = batch.name[rows].astype(np.int64) * NUM_SCOPES + batch.scope[rows]
        durations = np.where(batch.flags[rows] & _PARTIAL, -1, np.maximum(batch.end_ns[rows] - batch.start_ns[rows], 0))
        longer = np.flatnonzero(durations > known[keys])
        if len(longer):
            places = longer[_longest_of_each(keys[longer], durations[longer])]
            known[keys[places]] = durations[places]
            for place, key, ns in zip(places.tolist(), keys[places].tolist(), durations[places].tolist(), strict=True):
                self._keep(plan, place, key, ns)

    def _known(self, batch: Batch) -> NDArray[np.int64]:
        needed = len(batch.names) * NUM_SCOPES
        if batch.names is not self._names or needed > len(self._known_ns):
            self._known_ns, self._names = np.full(2 * needed, -1, np.int64), batch.names
        return self._known_ns

    def _keep(self, plan: SpanPlan, place: int, key: int, ns: int) -> None:
        name, scope = divmod(key, NUM_SCOPES)
        series = Series(scope, text_of_utf8(plan.batch.names[name]))
        kept = self.found.get(series)
        if kept.duration_ns < ns if kept is not None else len(self.found) < MAX_SERIES:
            above = plan.spans_above[plan.above[place]]
            span = SpanContext(above.trace_id, span_id(int(plan.batch.event_id[plan.row[place]])), False, _SAMPLED)
            self.found[series] = Exemplar(ns, max(0, int(plan.batch.end_ns[plan.row[place]])), span)


def _longest_of_each(keys: NDArray[np.int64], durations: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of the longest with each key."""
    order = np.lexsort((durations, keys))
    ordered = keys[order]
    places: NDArray[np.intp] = order[np.append(ordered[1:] != ordered[:-1], True)]
    return places
