"""What spans say of folded ranges: sums as attributes, how many, how long, which names took most of it; and spans of their own.

Attributes are made for many spans at once, of columns: taking numbers out of columns one by one takes longer than all the rest.
Those of a span that stands for a path's ranges are those of the span pruning processor of OpenTelemetry Collectors, which trace
viewers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from opentelemetry.trace import SpanContext

from otel_recfn.batches.span_plan import Places
from otel_recfn.batches.stage import Decided
from otel_recfn.batches.stretches import begins_of, places_in
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.support.json_text import text_of_utf8

FOLDED_COUNT = "recfn.folded.count"
"""The attribute of a span that tells how many ranges were folded into it."""

Attributes = dict[str, AttributeValue]


def sums_of(decided: Decided, places: Places) -> list[Attributes]:
    """The attributes of spans.

    Args:
        decided: what was decided.
        places: of their sums there.
    """
    sums = decided.sums[places]
    begins = begins_of(decided.sums["top_end"], places)
    lengths = sums["top_end"] - begins
    ends, top = np.cumsum(lengths), _top(decided, places_in(begins, lengths))
    columns = (sums["ranges"], sums["duration_ns"], ends - lengths, ends)
    return [
        {FOLDED_COUNT: ranges, "recfn.folded.duration_ns": duration_ns, "recfn.folded.top": top[first:last]}
        for ranges, duration_ns, first, last in zip(*[column.tolist() for column in columns], strict=True)
    ]


def _top(decided: Decided, places: Places) -> list[str]:
    rows = decided.top[places].tolist()
    texts = {name: text_of_utf8(decided.names[name]) for name in {name for _, _, name in rows}}
    return [f"{texts[name]}: {count} x, {self_ns / 1e6:.3f} ms" for count, self_ns, name in rows]


class ToldOfKept:
    """Attributes of kept ranges, made when they are asked for.

    Args:
        decided: what was decided.
    """

    def __init__(self, decided: Decided) -> None:
        self._decided = decided
        holder = decided.sums["holder"]
        in_kept = np.flatnonzero(holder >= 0)
        self._place = np.full(len(decided.folded), -1, np.int64)
        """Of the sums of each, -1 where it has none."""
        self._place[holder[in_kept]] = in_kept

    def of(self, kept: Places) -> dict[int, Attributes]:
        """Those of some of them, where they have some."""
        places = self._place[kept]
        having = places >= 0
        return dict(zip(kept[having].tolist(), sums_of(self._decided, places[having]), strict=True))


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
