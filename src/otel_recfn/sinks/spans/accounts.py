"""How many rows came, and what became of each.

    rows + roots + summaries + open_ranges
        = spans + folded + folding + dropped_by_hook + unsampled + suppressed + no_provider + other_kinds + failed

``open_ranges`` are spans of ranges that were told while they were open, whatever becomes of their rows. ``folding`` are rows in
units that aren't decided, or whose spans are on their way out; ``failed`` those for which something raised, or without time at
the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from otel_recfn.batches.span_plan import Fate, Fates

_COUNTERS = {Fate.OTHER_KIND: "other_kinds", Fate.SUPPRESSED: "suppressed", Fate.UNSAMPLED: "unsampled"}
_SOURCES = ("rows", "roots", "summaries", "open_ranges")
_NAMES = (*_SOURCES, "folded", "folding", "dropped_by_hook", *_COUNTERS.values(), "no_provider", "failed")


class Accounts:
    """Of one sink."""

    def __init__(self) -> None:
        self.counts: Mapping[str, int] = dict.fromkeys(_NAMES, 0)
        """Another one after each change: other threads read it."""

    def add(self, **more: int) -> None:
        """So many more."""
        self.counts = {name: count + more.get(name, 0) for name, count in self.counts.items()}

    def add_rows(self, fates: Fates, **more: int) -> None:
        """Rows with these fates, and so many more."""
        counted = np.bincount(fates, minlength=len(Fate)).tolist()
        self.add(rows=len(fates), **{name: counted[fate] for fate, name in _COUNTERS.items()}, **more)

    def settled(self, spans: int) -> Mapping[str, int]:
        """The counts where all has failed that has become neither one of so many spans nor anything else yet."""
        others = sum(count for name, count in self.counts.items() if name not in (*_SOURCES, "failed", "folding"))
        failed = sum(self.counts[name] for name in _SOURCES) - spans - others
        return {**self.counts, "failed": failed, "folding": 0}
