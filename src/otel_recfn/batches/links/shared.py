"""The links of a capture's batches: found once for all sinks that ask, and by nobody where none does.

    Chrome trace, on a thread of its own ─┐
                                          ├──► match(batch) ──► found by who asks first, kept as long as the batch lives
    spans, on a thread of their own ──────┘

A sink that has lost a batch goes on with links of its own, so that none leads to a range that it doesn't have.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from otel_recfn.batches.links.choice import links_maker
from otel_recfn.batches.links.protocol import Links
from otel_recfn.model.batch import Batch
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.locked import locked


class SharedLinks:
    """Of one capture. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock, self._make = ForkSafeLock(), links_maker()
        self.start_empty()

    @locked
    def match(self, batch: Batch) -> Links:
        """As ``FindsLinks.match``; asked again for a batch, it has the answer."""
        found = self._found.get(batch)
        if found is None:
            found = self._links.match(batch)
            self._found[batch] = found
        return found

    def start_empty(self) -> None:
        """As it was made: in a forked child, where no batch was there yet."""
        self._links = self._make()
        self._found: WeakKeyDictionary[Batch, Links] = WeakKeyDictionary()
