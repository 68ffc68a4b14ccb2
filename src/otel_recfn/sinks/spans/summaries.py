"""What the spans of a folded unit say of the ranges that have none.

A span of a range says what was folded into it in attributes of its own. What was folded directly into a unit of the program's
stands on one span more, because the program's own span has ended. What is left of a unit's budget goes to summary spans, one
for each path of names, those with the most time first.

A summary span is as long as its ranges were together and begins where the first of them began, moved so that it stays within
its parent; where ranges ran beside each other for longer than the parent, it is cut there. Its attributes are those of the span
pruning processor of OpenTelemetry Collectors, which trace viewers know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.fold.finished import FinishedUnits
from otel_recfn.batches.fold.folded import OTHER
from otel_recfn.sinks.spans.folded_sums import Attributes, holders
from otel_recfn.support.json_text import text_of_utf8
from otel_recfn.support.span_ids import span_ids

SUFFIX = " (folded)"


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
    folded: int = 0
    """How many ranges only this span tells of."""


class Extent(NamedTuple):
    """A span that summaries may be children of."""

    span_id: int
    start_ns: int
    end_ns: int


class Unit(NamedTuple):
    """What has to be known of a finished unit."""

    above: SpanContext
    start_ns: int
    end_ns: int
    budget: int
    """Spans for summaries."""
    tells_itself: bool
    """The span above is ours, and takes what was folded directly below it."""


class Told(NamedTuple):
    """What is said of folded ranges."""

    on_kept: Mapping[int, Attributes]
    """Attributes of kept ranges, by their place."""
    on_unit: Mapping[int, Attributes]
    """Of the spans above units that tell themselves."""
    first: Sequence[Summary]
    """One for each unit that doesn't: what was folded directly into it."""
    rest: Sequence[Summary]
    """What the budgets are left for."""


class Teller:
    """Says it of units that were finished together.

    Args:
        done: what became of their ranges.
        units: what is known of them.
        kept: the spans of the kept ranges.
        names: by number.
    """

    def __init__(self, done: FinishedUnits, units: Sequence[Unit], kept: Sequence[Extent], names: Sequence[str]) -> None:
        self._done, self._units, self._kept, self._names = done, units, kept, names
        self._ids: list[int] = span_ids(done.path_first_id).tolist()
        self._shown: dict[int, Extent] = {}
        """Paths that have a span."""

    def told(self) -> Told:
        """All of it."""
        on_kept: dict[int, Attributes] = {}
        on_unit: dict[int, Attributes] = {}
        first: list[Summary] = []
        for one in holders(self._done, self._names):
            if one.holder >= 0:
                on_kept[one.holder] = one.attributes
            elif self._units[one.unit].tells_itself:
                on_unit[one.unit] = one.attributes
            else:
                summary = self._summary(one.longest)
                first.append(summary._replace(attributes={**summary.attributes, **one.attributes}, folded=one.ranges))
        return Told(on_kept, on_unit, first, [self._summary(path) for path in self._chosen()])

    def _chosen(self) -> list[int]:
        """The paths that the budgets are left for, those with the most time first, and each after what it lies in."""
        left = np.array([unit.budget for unit in self._units], np.int64)
        free = self._done.path_name != OTHER
        free[list(self._shown)] = False
        paths = np.flatnonzero(free)
        order = paths[np.lexsort((-self._done.path_total_ns[paths], self._done.path_unit[paths]))]
        unit = self._done.path_unit[order]
        rank = np.arange(len(order)) - np.searchsorted(unit, unit)
        chosen: list[int] = np.sort(order[rank < left[unit]]).tolist()
        self._shown |= {path: Extent(self._ids[path], 0, 0) for path in chosen}
        return chosen

    def _summary(self, path: int) -> Summary:
        done, unit = self._done, self._units[int(self._done.path_unit[path])]
        parent = self._parent(path, unit)
        duration = min(int(done.path_total_ns[path]), max(0, parent.end_ns - parent.start_ns))
        start = min(max(int(done.path_first_ns[path]), parent.start_ns), parent.end_ns - duration)
        self._shown[path] = Extent(self._ids[path], start, start + duration)
        once = int(done.path_count[path]) == 1
        attributes: Attributes = {"recfn.event_id": int(done.path_first_id[path])} if once else self._aggregation(path)
        name = self._name(int(done.path_name[path]))
        ends = (start, start + duration)
        return Summary(name if once else name + SUFFIX, self._ids[path], parent.span_id, unit.above, *ends, attributes)

    def _parent(self, path: int, unit: Unit) -> Extent:
        above = int(self._done.path_above[path])
        while above >= 0:
            if above in self._shown:
                return self._shown[above]
            above = int(self._done.path_above[above])
        holder = int(self._done.path_holder[path])
        return self._kept[holder] if holder >= 0 else Extent(unit.above.span_id, unit.start_ns, unit.end_ns)

    def _aggregation(self, path: int) -> Attributes:
        done, count, total = self._done, int(self._done.path_count[path]), int(self._done.path_total_ns[path])
        counts, lowest = done.counts_of(path), int(done.path_digits[path])
        bounds = [(1 << digits) / 1e9 for digits in range(lowest, lowest + len(counts) - 1)]
        return {
            "aggregation.is_summary": True,
            "aggregation.span_count": count,
            "aggregation.duration_min_ns": int(done.path_shortest_ns[path]),
            "aggregation.duration_max_ns": int(done.path_longest_ns[path]),
            "aggregation.duration_avg_ns": total // count,
            "aggregation.duration_total_ns": total,
            "aggregation.histogram_bucket_bounds_s": bounds,
            "aggregation.histogram_bucket_counts": counts or [0],
        }

    def _name(self, number: int) -> str:
        return text_of_utf8(self._names[number])
