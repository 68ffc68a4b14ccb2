"""The links of a capture's batches: found once for all sinks that ask, and by nobody where none does.

    Chrome trace, on a thread of its own ─┐
                                          ├──► match(batch) ──► found by who asks first, kept as long as the batch lives
    spans, on a thread of their own ──────┘

A sink that has lost a batch goes on with links of its own, so that none leads to a range that it doesn't have.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakKeyDictionary

from otel_recfn.batches.links import ForwardBackwardLinks, Links
from otel_recfn.model.batch import Batch
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.locked import locked


class FindsLinks(Protocol):
    """Of a sink's own, or shared."""

    def match(self, batch: Batch) -> Links:
        """Remember the batch's forward ranges, then find those of its backward rows."""


class SharedLinks:
    """Of one capture. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.start_empty()

    @locked
    def match(self, batch: Batch) -> Links:
        """As ``ForwardBackwardLinks.match``; asked again for a batch, it has the answer."""
        found = self._found.get(batch)
        if found is None:
            found = self._links.match(batch)
            self._found[batch] = found
        return found

    def start_empty(self) -> None:
        """As it was made: in a forked child, where no batch was there yet."""
        self._links = ForwardBackwardLinks()
        self._found: WeakKeyDictionary[Batch, Links] = WeakKeyDictionary()
