"""How many ranges came, and what became of each.

    recorded + added = spans that were handed on + folded + folding + unsampled + queue_full + shutdown + error

``added`` are spans of no single range: roots, sums, ranges that were told while they were open, whatever becomes of their rows.
``unsampled`` are ranges of which no span was wanted: by the sampler, by who suppressed instrumentation, by the hook, or as
there is no provider. ``folding`` are those in units that aren't decided, or wait to be sent; ``queue_full`` those that the
queue had no room for, ``shutdown`` those that the end found unsent, ``error`` those of which spans could not be made.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from otel_recfn.batches.span_plan import Fate

_LOST = ("queue_full", "shutdown", "error")
_NAMES = ("recorded", "added", "folded", "folding", "unsampled", *_LOST)


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

    def add_rows(self, fates: Sequence[int], folding: int) -> None:
        """Count the ranges of a batch, of whose rows so many have each fate."""
        ranges = sum(fates) - fates[Fate.OTHER_KIND]
        self.add(recorded=ranges, unsampled=fates[Fate.SUPPRESSED] + fates[Fate.UNSAMPLED], folding=folding)

    def close(self) -> None:
        """What is unsent isn't sent any more."""
        with self._lock:
            self._closed = True
            self._counts["shutdown"] += self._counts["folding"]
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
