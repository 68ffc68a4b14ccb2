"""What is said of the ranges that were folded into one span, as attributes: how many, how long, which names took most of it.

Attributes are made for many spans at once, of columns: taking numbers out of columns one by one takes longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_recfn.batches.fold.finished import Places
from otel_recfn.batches.fold.told import Told
from otel_recfn.batches.stretches import begins_of, places_in
from otel_recfn.sinks.spans.limits import AttributeValue
from otel_recfn.support.json_text import text_of_utf8

FOLDED_COUNT = "recfn.folded.count"
"""The attribute of a span that tells how many ranges were folded into it."""

Attributes = dict[str, AttributeValue]


def sums_of(told: Told, places: Places, names: Sequence[str]) -> list[Attributes]:
    """The attributes of spans.

    Args:
        told: of many spans.
        places: of their sums there.
        names: by number.
    """
    begins = begins_of(told.top_end, places)
    lengths = told.top_end[places] - begins
    ends, top = np.cumsum(lengths), _top(told, places_in(begins, lengths), names)
    columns = (told.ranges[places], told.duration_ns[places], ends - lengths, ends)
    return [
        {FOLDED_COUNT: ranges, "recfn.folded.duration_ns": duration_ns, "recfn.folded.top": top[first:last]}
        for ranges, duration_ns, first, last in zip(*[column.tolist() for column in columns], strict=True)
    ]


def _top(told: Told, places: Places, names: Sequence[str]) -> list[str]:
    columns = [column[places].tolist() for column in (told.top_name, told.top_count, told.top_self_ns)]
    texts = {name: text_of_utf8(names[name]) for name in set(columns[0])}
    return [f"{texts[name]}: {count} x, {self_ns / 1e6:.3f} ms" for name, count, self_ns in zip(*columns, strict=True)]


class ToldOfKept:
    """Attributes of kept ranges, made when they are asked for.

    Args:
        told: what is told.
        names: by number.
        kept: how many ranges are.
    """

    def __init__(self, told: Told, names: Sequence[str], kept: int) -> None:
        self._told, self._names = told, names
        in_kept = np.flatnonzero(told.holder >= 0)
        self._place = np.full(kept, -1, np.int64)
        """Of the sums of each, -1 where it has none."""
        self._place[told.holder[in_kept]] = in_kept

    def of(self, kept: Places) -> dict[int, Attributes]:
        """Those of some of them, where they have some."""
        places = self._place[kept]
        having = places >= 0
        return dict(zip(kept[having].tolist(), sums_of(self._told, places[having], self._names), strict=True))
