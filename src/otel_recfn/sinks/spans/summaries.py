"""Spans for folded ranges, one for each path that is told by one; their attributes.

The attributes are those of the span pruning processor of OpenTelemetry Collectors, which trace viewers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.fold.finished import FinishedUnits, Ids
from otel_recfn.batches.fold.told import Told
from otel_recfn.sinks.spans.folded_sums import Attributes, sums_of
from otel_recfn.support.json_text import text_of_utf8
from otel_recfn.support.span_ids import span_ids

SUFFIX = " (folded)"
ENOUGH_FOR_A_HISTOGRAM = 10
"""Of fewer durations the least, the longest and the mean say as much; each number of a list costs exporters in Python 2 us."""


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
    """Those of units that were finished together. Each is made when it is asked for.

    Args:
        done: what became of their ranges.
        told: what is told of them.
        kept: the span ids of the kept ranges.
        above: the span above each unit.
        names: by number.
    """

    def __init__(self, done: FinishedUnits, told: Told, kept: Ids, above: Sequence[SpanContext], names: Sequence[str]) -> None:
        self._done, self._told, self._above, self._names = done, told, above, names
        self.span_id: Ids = span_ids(done.path_first_id[told.path])
        """Of each."""
        self._parent_id = self._parents(kept)

    def __len__(self) -> int:
        return len(self.span_id)

    def _parents(self, kept: Ids) -> Ids:
        done, told = self._done, self._told
        above_id = np.array([one.span_id for one in self._above], np.uint64)
        holder = done.path_holder[told.path]
        around = above_id[done.path_unit[told.path]]
        in_kept = holder >= 0
        around[in_kept] = kept[holder[in_kept]]
        in_path = told.parent >= 0
        around[in_path] = span_ids(done.path_first_id[told.parent[in_path]])
        return around

    def folded(self, place: int) -> int:
        """How many ranges only this span tells of."""
        sums = int(self._told.sums[place])
        return int(self._told.ranges[sums]) if sums >= 0 else 0

    def make(self, place: int) -> Summary:
        """One of them."""
        done, told, path = self._done, self._told, int(self._told.path[place])
        once, sums = int(done.path_count[path]) == 1, int(told.sums[place])
        attributes: Attributes = {"recfn.event_id": int(done.path_first_id[path])} if once else _aggregation(done, path)
        if sums >= 0:
            attributes |= sums_of(told, sums, self._names)
        name = text_of_utf8(self._names[int(done.path_name[path])])
        return Summary(
            name if once else name + SUFFIX,
            int(self.span_id[place]),
            int(self._parent_id[place]),
            self._above[int(done.path_unit[path])],
            int(told.start_ns[place]),
            int(told.end_ns[place]),
            attributes,
        )


def _aggregation(done: FinishedUnits, path: int) -> Attributes:
    count, total = int(done.path_count[path]), int(done.path_total_ns[path])
    told: Attributes = {
        "aggregation.is_summary": True,
        "aggregation.span_count": count,
        "aggregation.duration_min_ns": int(done.path_shortest_ns[path]),
        "aggregation.duration_max_ns": int(done.path_longest_ns[path]),
        "aggregation.duration_avg_ns": total // count,
        "aggregation.duration_total_ns": total,
    }
    return told if count < ENOUGH_FOR_A_HISTOGRAM else told | _histogram(done, path)


def _histogram(done: FinishedUnits, path: int) -> Attributes:
    counts, lowest = done.counts_of(path), int(done.path_digits[path])
    return {
        "aggregation.histogram_bucket_bounds_s": [(1 << digits) / 1e9 for digits in range(lowest, lowest + len(counts) - 1)],
        "aggregation.histogram_bucket_counts": counts or [0],
    }
