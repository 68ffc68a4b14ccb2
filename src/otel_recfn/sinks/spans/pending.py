"""Batches that are being written, and what must not be missing of one that can't be written to its end.

    add ──► first ──► (rows are handed on: taken) ──► finish_first
              └─ no memory for the rest ──► reduce_first ──► first ...
              └─ no time for the rest ────► give_up ───────► first ...

Of what is dropped, the ranges that earlier spans lie in are kept (``batches/gaps.py``). Where there is no memory even for that,
nothing is forgotten: the call raises, and is made again with the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from otel_recfn.batches.gaps import Gaps
from otel_recfn.batches.merging import merged
from otel_recfn.batches.rows import Places
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.waiting_batches import WaitingBatches


@dataclass(eq=False, slots=True)
class Pending:
    """A batch that is being written, and how many of its rows are."""

    batch: Batch
    taken: int = 0
    """How many of its rows, from the first, were handed on or counted as something else."""
    short: bool = False
    """There was no memory to write the rest of it."""
    dropped: int = 0
    """How many further rows were dropped, and are not counted yet."""
    failed: bool = False
    """Something raised in the middle of it."""
    order: Places | None = None
    """The batch's rows as they are taken one after the other; None: as they stand."""

    def done(self) -> Batch:
        """The rows that were handed on or counted."""
        return self._part(slice(self.taken))

    def rest(self) -> Batch:
        """The rows that were not handed on or counted yet."""
        return self._part(slice(self.taken, None))

    def _part(self, places: slice) -> Batch:
        return self.batch.take(places if self.order is None else self.order[places])


class PendingBatches:
    """A queue of batches, in the order in which they came."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self._first: Pending | None = None
        """The batch that is being written."""
        self._waiting = WaitingBatches()
        """The batches that wait behind it."""

    def add(self, batch: Batch) -> None:
        """Add a batch to the end of the queue.

        Raises:
            MemoryError: too many wait already.
        """
        if not self._waiting.add(batch):
            raise MemoryError

    def has_room(self) -> bool:
        """Whether few batches wait."""
        return self._waiting.has_room()

    def first(self) -> Pending | None:
        """The batch to write now; its rows have other parents in place of those that were dropped before."""
        if self._first is None:
            batch = self._waiting.first()
            if batch is None:
                return None
            pending = Pending(batch)
            self._waiting.remove_first()
            self._first = pending
        if not self._first.taken:
            self._first.batch = self._gaps.mended(self._first.batch)
        return self._first

    def finish_first(self) -> None:
        """All rows of the batch that was being written were handed on or counted: the next one's turn."""
        if self._first is not None:
            self._gaps.note(self._first.batch)
            self._first = None

    def cut_first(self) -> None:
        """There was no memory for the rest of the batch that was being written."""
        if self._first is not None:
            self._first.short = True

    def fail_first(self) -> None:
        """Something raised in the middle of it: it is cut, and the second time dropped."""
        first = self._first
        if first is not None and first.failed:
            dropped = first.dropped + len(first.batch) - first.taken
            self._first = Pending(merged([]), dropped=dropped)
        elif first is not None:
            first.failed = first.short = True

    def reduce_first(self) -> None:
        """Drop the rest of the batch that is being written, but for rows that must not be missing."""
        rest = self._rest_of_first()
        kept = self._gaps.kept_of(rest)
        failed = self._first is not None and self._first.failed
        self._first = Pending(kept, dropped=self._dropped_of_first() + len(rest) - len(kept), failed=failed)

    def give_up(self, further: list[Batch]) -> None:
        """Drop the rest of all batches, and the ``further`` ones, but for rows that must not be missing; outermost first.

        Of ``further`` those are taken out that wait here: it may be called again where there was no memory.
        """
        while further and (self._waiting.last() is further[0] or self._waiting.add(further[0])):
            del further[0]  # first: they wait if memory ends in the rest; and it may end here
        kept = [self._kept_of(batch) for batch in (self._rest_of_first(), *self._waiting, *further)]
        rows = merged([batch for batch in kept if len(batch)])
        first = Pending(rows.take(np.lexsort((rows.event_id, rows.start_ns))), dropped=self._dropped_of_first())
        self._first, self._waiting = first, WaitingBatches()

    def batches(self) -> int:
        """How many batches were not written to their ends."""
        return len(self._waiting) + (self._first is not None)

    def rows(self) -> int:
        """How many rows were neither handed on nor counted."""
        left = sum([len(batch) for batch in self._waiting])
        first = self._first
        return left if first is None else left + len(first.batch) - first.taken + first.dropped

    def clear(self) -> None:
        """Drop all batches."""
        self._first = None
        self._waiting.clear()

    def _dropped_of_first(self) -> int:
        return 0 if self._first is None else self._first.dropped

    def _kept_of(self, batch: Batch) -> Batch:
        kept = self._gaps.kept_of(batch)
        self._gaps.owe(kept)
        return kept

    def _rest_of_first(self) -> Batch:
        """The rows of a batch that are not handed on yet; the others are noted, once."""
        first = self._first
        if first is None:
            return merged([])
        if first.taken:
            rest = first.rest()
            self._gaps.note(first.done())
            first.batch, first.order, first.taken, first.short = rest, None, 0, True
        return first.batch
