"""How many rows came, and what became of each.

    rows + roots + summaries + open_ranges
        = spans + folded + folding + dropped_by_hook + unsampled + suppressed + no_provider + other_kinds
          + queue_dropped + abandoned + failed

``open_ranges`` are spans of ranges that were told while they were open, whatever becomes of their rows. ``folding`` are rows in
units that aren't decided, or wait to be sent; ``queue_dropped`` those of units that the queue had no room for, ``abandoned``
those that the end found unsent, ``failed`` those of units of which spans could not be made.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from otel_recfn.batches.span_plan import Fate

_COUNTERS = {Fate.OTHER_KIND: "other_kinds", Fate.SUPPRESSED: "suppressed", Fate.UNSAMPLED: "unsampled"}
_SOURCES = ("rows", "roots", "summaries", "open_ranges")
_LOST = ("queue_dropped", "abandoned", "failed")
_NAMES = (*_SOURCES, "folded", "folding", "dropped_by_hook", *_COUNTERS.values(), "no_provider", *_LOST)


class Accounts:
    """Of one sink. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may ask for the counts
        self._counts = dict.fromkeys(_NAMES, 0)
        self._closed = False

    def add(self, **more: int) -> bool:
        """Count so many more. False where the accounts are closed: nothing is counted, nor to be sent, any more."""
        with self._lock:
            if self._closed:
                return False
            for name, count in more.items():
                self._counts[name] += count
            return True

    def add_rows(self, fates: Sequence[int], **more: int) -> None:
        """Count the rows of a batch, of which so many have each fate."""
        self.add(rows=sum(fates), **{name: fates[fate] for fate, name in _COUNTERS.items()}, **more)

    def close(self) -> None:
        """What is unsent is abandoned."""
        with self._lock:
            self._closed = True
            self._counts["abandoned"] += self._counts["folding"]
            self._counts["folding"] = 0

    @property
    def lost(self) -> int:
        """Ranges that never became a part of a span that was handed on, though they should."""
        with self._lock:
            return sum(self._counts[name] for name in _LOST)

    def counts(self) -> dict[str, int]:
        """All of them."""
        with self._lock:
            return dict(self._counts)
