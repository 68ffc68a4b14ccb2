"""Spans for folded ranges, one for each path that is told by one; their attributes.

The attributes are those of the span pruning processor of OpenTelemetry Collectors, which trace viewers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.fold.finished import DIGITS, FinishedUnits, Ids, Places
from otel_recfn.batches.fold.told import Told
from otel_recfn.batches.stretches import begins_of, places_in
from otel_recfn.sinks.spans.folded_sums import Attributes, sums_of
from otel_recfn.support.json_text import text_of_utf8
from otel_recfn.support.span_ids import span_ids

SUFFIX = " (folded)"
ENOUGH_FOR_A_HISTOGRAM = 10
"""Of fewer durations the least, the longest and the mean say as much; each number of a list costs exporters in Python 2 us."""
_BOUNDS_S = [(1 << digits) / 1e9 for digits in range(DIGITS)]
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
    """Those of units that were finished together. They are made when they are asked for.

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

    def folded(self, which: slice) -> int:
        """How many ranges only these spans tell of."""
        sums = self._told.sums[which]
        return int(self._told.ranges[sums[sums >= 0]].sum())

    def make(self, which: slice) -> list[Summary]:
        """Some of them."""
        done, told = self._done, self._told
        path = told.path[which]
        attributes = _attributes(done, path)
        self._add_sums(attributes, told.sums[which])
        names, is_one = done.path_name[path].tolist(), (done.path_count[path] == 1).tolist()
        return [
            Summary(*each)
            for each in zip(
                [self._name(name, once) for name, once in zip(names, is_one, strict=True)],
                self.span_id[which].tolist(),
                self._parent_id[which].tolist(),
                map(self._above.__getitem__, done.path_unit[path].tolist()),
                told.start_ns[which].tolist(),
                told.end_ns[which].tolist(),
                attributes,
                strict=True,
            )
        ]

    def _add_sums(self, attributes: Sequence[Attributes], sums: Places) -> None:
        telling = np.flatnonzero(sums >= 0)
        for place, more in zip(telling.tolist(), sums_of(self._told, sums[telling], self._names), strict=True):
            attributes[place].update(more)

    def _name(self, number: int, once: bool) -> str:
        name = text_of_utf8(self._names[number])
        return name if once else name + SUFFIX


def _attributes(done: FinishedUnits, path: Places) -> list[Attributes]:
    """What is said of the ranges of each of these paths."""
    columns = (
        done.path_first_id[path],
        done.path_count[path],
        done.path_shortest_ns[path],
        done.path_longest_ns[path],
        done.path_total_ns[path],
    )
    said = [_of_path(*each) for each in zip(*[column.tolist() for column in columns], strict=True)]
    many = np.flatnonzero(done.path_count[path] >= ENOUGH_FOR_A_HISTOGRAM)
    for place, histogram in zip(many.tolist(), _histograms(done, path[many]), strict=True):
        said[place].update(histogram)
    return said


def _of_path(first_id: int, count: int, shortest_ns: int, longest_ns: int, total_ns: int) -> Attributes:
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


def _histograms(done: FinishedUnits, path: Places) -> list[Attributes]:
    """Of the durations of each of these paths."""
    begins = begins_of(done.path_counts_end, path)
    lengths = done.path_counts_end[path] - begins
    counts, ends = done.counts[places_in(begins, lengths)].tolist(), np.cumsum(lengths)
    columns = (done.path_digits[path], ends - lengths, ends)
    return [
        {
            "aggregation.histogram_bucket_bounds_s": _BOUNDS_S[lowest : max(lowest, lowest + last - first - 1)],
            "aggregation.histogram_bucket_counts": counts[first:last] or [0],
        }
        for lowest, first, last in zip(*[column.tolist() for column in columns], strict=True)
    ]
