"""Batches that are being written, and what must not be missing of one that can't be written to its end.

    add ──► first ──► (rows are handed on: taken) ──► finish_first
              └─ no memory for the rest ──► reduce_first ──► first ...
              └─ no time for the rest ────► give_up ───────► first ...

Of what is dropped, the ranges that earlier spans lie in are kept (``batches/gaps.py``). Where there is no memory even for that,
nothing is forgotten: the call raises, and is made again with the next batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otel_recfn.batches.gaps import Gaps
from otel_recfn.batches.merging import merged
from otel_recfn.model.batch import Batch

MAX_PENDING = 64
"""Batches that wait for memory. More are refused, as if there were no memory for them."""


@dataclass(eq=False, slots=True)
class Pending:
    """A batch, and how far it is written."""

    batch: Batch
    taken: int = 0
    """So many of its rows were handed on, or counted as something else."""
    short: bool = False
    """There was no memory for the rest."""

    def done(self) -> Batch:
        """The rows that were taken."""
        return self.batch.take(slice(self.taken))

    def rest(self) -> Batch:
        """The rows that were not."""
        return self.batch.take(slice(self.taken, None))


class PendingBatches:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self._pending: deque[Pending] = deque()

    def add(self, batch: Batch) -> None:
        """Another batch.

        Raises:
            MemoryError: too many wait already.
        """
        if len(self._pending) >= MAX_PENDING:
            raise MemoryError
        self._pending.append(Pending(batch))

    def first(self) -> Pending | None:
        """The one that is to be written now, as part of the tree without what was dropped before."""
        if not self._pending:
            return None
        first = self._pending[0]
        if not first.taken:
            first.batch = self._gaps.mended(first.batch)
        return first

    def finish_first(self) -> None:
        """All its rows were taken."""
        self._gaps.note(self._pending[0].batch)
        self._pending.popleft()

    def cut_first(self) -> None:
        """There was no memory for the rest of it."""
        if self._pending:
            self._pending[0].short = True

    def reduce_first(self) -> int:
        """Drop the rest of it, but for what must not be missing. Returns how many rows were dropped."""
        first = self._pending[0]
        self._gaps.note(first.done())
        rest = first.rest()
        kept = self._gaps.kept_of(rest)
        self._pending[0] = Pending(kept)
        return len(rest) - len(kept)

    def give_up(self, further: Sequence[Batch]) -> None:
        """Drop the rest of them all, and ``further`` ones, but for what must not be missing, outermost ranges first."""
        kept = []
        for pending in self._pending:
            self._gaps.note(pending.done())
            kept.append(self._gaps.reduced(pending.rest()))
        kept += [self._gaps.reduced(batch) for batch in further]
        rows = merged([batch for batch in kept if len(batch)])
        self._pending = deque([Pending(rows.take(np.lexsort((rows.event_id, rows.start_ns))))])

    def clear(self) -> int:
        """Drop them all. Returns how many rows were not taken."""
        left = sum(len(pending.batch) - pending.taken for pending in self._pending)
        self._pending.clear()
        return left
