"""Spans for folded ranges, one for each path that is told by one; their attributes.

The attributes are those of the span pruning processor of OpenTelemetry Collectors, which trace viewers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.span_plan import Places
from otel_recfn.batches.stage import Decided
from otel_recfn.batches.stretches import begins_of
from otel_recfn.sinks.spans.folded_sums import Attributes, sums_of
from otel_recfn.support.json_text import text_of_utf8

SUFFIX = " (folded)"
ENOUGH_FOR_A_HISTOGRAM = 10
"""Of fewer durations the least, the longest and the mean say as much; each number of a list costs exporters in Python 2 us."""
_BOUNDS_S = [(1 << digits) / 1e9 for digits in range(64)]
"""Of durations by how many binary digits they have."""


class Summary(NamedTuple):
    """A span for the ranges of a path."""

    name: str
    span_id: int
    parent_id: int
    above: SpanContext
    """The span that the unit is below; its trace is this span's."""
    start_ns: int
    end_ns: int
    attributes: Attributes


class Summaries:
    """Those of units that were decided together. They are made when they are asked for.

    Args:
        decided: what became of their ranges.
    """

    def __init__(self, decided: Decided) -> None:
        self._decided = decided

    def __len__(self) -> int:
        return len(self._decided.summaries)

    def folded(self, which: slice) -> int:
        """How many ranges only these spans tell of."""
        sums = self._decided.summaries["sums"][which]
        return int(self._decided.sums["ranges"][sums[sums >= 0]].sum())

    def make(self, which: slice) -> list[Summary]:
        """Some of them."""
        decided, rows = self._decided, self._decided.summaries[which]
        attributes = [_attributes(row) for row in rows[_ATTRIBUTES].tolist()]
        self._add_histograms(attributes, which)
        self._add_sums(attributes, rows["sums"])
        columns = ("name", "count", "span_id", "parent_id", "unit", "start_ns", "end_ns")
        return [
            Summary(self._name(name, count), span_id, parent_id, decided.plan.spans_above[unit], start_ns, end_ns, said)
            for (name, count, span_id, parent_id, unit, start_ns, end_ns), said in zip(
                rows[[*columns]].tolist(), attributes, strict=True
            )
        ]

    def _add_histograms(self, attributes: Sequence[Attributes], which: slice) -> None:
        """Of the durations of each path that has many ranges."""
        decided, rows = self._decided, self._decided.summaries[which]
        many = np.flatnonzero(rows["count"] >= ENOUGH_FOR_A_HISTOGRAM)
        begins = begins_of(decided.summaries["counts_end"], many + (which.start or 0))
        columns = (many, rows["digits"][many], begins, rows["counts_end"][many])
        for place, lowest, first, last in zip(*[column.tolist() for column in columns], strict=True):
            said, counts = attributes[place], decided.counts[first:last].tolist()
            said["aggregation.histogram_bucket_bounds_s"] = _BOUNDS_S[lowest : max(lowest, lowest + len(counts) - 1)]
            said["aggregation.histogram_bucket_counts"] = counts or [0]

    def _add_sums(self, attributes: Sequence[Attributes], sums: Places) -> None:
        telling = np.flatnonzero(sums >= 0)
        for place, more in zip(telling.tolist(), sums_of(self._decided, sums[telling]), strict=True):
            attributes[place].update(more)

    def _name(self, number: int, count: int) -> str:
        name = text_of_utf8(self._decided.names[number])
        return name if count == 1 else name + SUFFIX


_ATTRIBUTES = ["first_id", "count", "shortest_ns", "longest_ns", "total_ns"]


def _attributes(row: tuple[int, ...]) -> Attributes:
    """What is said of the ranges of a path."""
    first_id, count, shortest_ns, longest_ns, total_ns = row
    if count == 1:
        return {"recfn.event_id": first_id}
    return {
        "aggregation.is_summary": True,
        "aggregation.span_count": count,
        "aggregation.duration_min_ns": shortest_ns,
        "aggregation.duration_max_ns": longest_ns,
        "aggregation.duration_avg_ns": total_ns // count,
        "aggregation.duration_total_ns": total_ns,
    }
