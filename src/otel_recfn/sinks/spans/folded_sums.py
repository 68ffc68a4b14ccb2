"""What is said of the ranges that were folded into one span, as attributes: how many, how long, which names took most of it.

Attributes are made for many spans at once, of columns: taking numbers out of columns one by one takes longer than all the rest.
"""

from __future__ import annotations

import numpy as np

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
