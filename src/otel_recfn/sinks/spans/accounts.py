"""How many rows came, and what became of each.

    rows + roots + summaries + open_ranges
        = spans + folded + folding + dropped_by_hook + unsampled + suppressed + no_provider + other_kinds + failed

``open_ranges`` are spans of ranges that were told while they were open, whatever becomes of their rows. ``folding`` are rows in
units that aren't decided, or whose spans are on their way out; ``failed`` those without memory for them, or without time at the
end, or for which something raised.
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.span_plan import Fate, Fates

_COUNTERS = {Fate.OTHER_KIND: "other_kinds", Fate.SUPPRESSED: "suppressed", Fate.UNSAMPLED: "unsampled"}
_SOURCES = ("rows", "roots", "summaries", "open_ranges")
_NAMES = (*_SOURCES, "folded", "folding", "dropped_by_hook", *_COUNTERS.values(), "no_provider", "failed")


class Accounts:
    """Of one sink.

    Whoever stores new ``counts`` stores what they count in the same statement: where there is no memory, neither.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_NAMES, 0)

    def plus(self, **more: int) -> dict[str, int]:
        """The counts with so many more."""
        counts = dict(self.counts)
        for name, count in more.items():
            counts[name] += count
        return counts

    def plus_rows(self, fates: Fates, first: int, last: int, **more: int) -> dict[str, int]:
        """The counts with these rows of a batch, and so many more."""
        counted = np.bincount(fates[first:last], minlength=len(Fate)).tolist()
        counts = self.plus(rows=last - first, **more)
        for fate, name in _COUNTERS.items():
            counts[name] += counted[fate]
        return counts
