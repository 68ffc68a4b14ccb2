"""What may be dropped of a stream of batches so that no row that is kept loses its parent.

A range's row comes when it has ended: mostly after the rows below it, sometimes before. So when a batch has to be dropped,

* ranges in it are kept if rows directly below them were handed on before, because those rows would have no parent; so are the
  outermost ranges of such rows, which folding takes for their parents where it has to tell of them before all came; and ranges
  whose span the program saw as the current one, because spans of its own may be their children;
* a later row whose parent was dropped gets the nearest ancestor that was not dropped as its parent.

Memory is bounded, so the oldest of both are forgotten, but for how far they go in each thread (``thread_marks.py``): a range
that may be awaited is kept, and a row whose parent may have been dropped goes up to its outermost range, or to the top.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from otel_recfn.batches.ancestry import followed
from otel_recfn.batches.merging import merged
from otel_recfn.batches.number_sets import is_in
from otel_recfn.batches.owed import still_owed
from otel_recfn.batches.remembered import Ids, Mask, Remembered, by_id
from otel_recfn.batches.thread_marks import ThreadMarks
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag

_MAY_BE_SHOWN = np.uint32(EventFlag.SHOWN | EventFlag.PARTIAL)
"""Only an end says whether a range was shown, and a partial one has none."""
MAX_OWED = 1 << 16
"""How many parents may be waited for one by one. Some never come: rows that ended after their parent wait for it, too."""


class Gaps:
    """One stream's, batch by batch. Making one imports: for a thread of the program's.

    Args:
        most_remembered: how many dropped ranges are remembered, for rows that come after their parent.
    """

    def __init__(self, most_remembered: int = 1 << 17) -> None:
        self._owed = self._owed_roots = np.zeros(0, np.uint64)
        """Parents, and outermost ranges, of rows that were handed on, which haven't come yet. Of the outermost ones, some
        never come: they had been dropped before."""
        self._dropped = Remembered(most_remembered, columns=2)
        """Dropped ranges, each with its nearest ancestor that was not dropped."""
        self._has_dropped = False
        self._may_be_awaited, self._may_be_dropped = ThreadMarks(), ThreadMarks()

    def kept_of(self, batch: Batch) -> Batch:
        """What is still to be handed on of a batch that is dropped, with nothing announced. The caller notes it then."""
        batch = self.mended(batch)
        awaited = is_in(batch.event_id, self._owed) | is_in(batch.event_id, self._owed_roots)
        awaited |= self._may_be_awaited.reach(batch.event_id)
        kept = awaited | (batch.flags & _MAY_BE_SHOWN != 0)
        gone = np.flatnonzero(~kept)
        order = gone[np.argsort(batch.event_id[gone])]
        nearest = followed(batch.parent.copy(), batch.event_id[order], batch.parent[order])
        rest = batch.take(kept, parent=nearest[kept])
        if len(rest):
            rest = merged([rest])  # its own tables: the batch's names may be many
        self._has_dropped = True
        for forgotten, _ in self._dropped.add(by_id(batch.event_id[gone], nearest[gone])):
            self._may_be_dropped.add(forgotten)
        return rest

    def mended(self, batch: Batch) -> Batch:
        """The batch with what was dropped taken out of the tree."""
        if not self._has_dropped or not len(batch):
            return batch
        parent = batch.parent
        while True:  # what a dropped range lay in may have been dropped after it
            found, (nearest,) = self._dropped.find(parent)
            if not found.any():
                break
            parent = np.where(found, nearest, parent)
        parent = self._without_forgotten(batch, parent)
        return batch if parent is batch.parent else replace(batch, parent=parent)

    def _without_forgotten(self, batch: Batch, parent: Ids) -> Ids:
        """The parents, but for those that may have been dropped: nobody knows any more."""
        if not len(self._may_be_dropped):
            return parent
        rows = np.flatnonzero(self._may_be_dropped.reach(parent))
        rows = rows[~self._will_come(batch, parent[rows])]
        if not len(rows):
            return parent
        root, found = batch.root[rows], np.array(parent, np.uint64)
        known = (self._will_come(batch, root) | ~self._may_have_been_dropped(root)) & (root != batch.event_id[rows])
        found[rows] = np.where(known, root, np.uint64(0))
        return found

    def _may_have_been_dropped(self, ids: Ids) -> Mask:
        return self._dropped.find(ids)[0] | self._may_be_dropped.reach(ids)

    def _will_come(self, batch: Batch, ids: Ids) -> Mask:
        """Which ranges are in the batch, or will be kept whatever comes."""
        found: Mask = is_in(ids, batch.event_id) | is_in(ids, self._owed)
        return found

    def note(self, batch: Batch) -> None:
        """A batch was handed on."""
        if not len(batch):
            return
        owed = still_owed(self._owed, batch.parent, batch.event_id)
        owed_roots = still_owed(self._owed_roots, batch.root, batch.event_id)
        forgotten = np.concatenate([owed[MAX_OWED:], owed_roots[MAX_OWED:]])
        if len(forgotten):
            self._may_be_awaited.add(forgotten)
        self._owed, self._owed_roots = owed[:MAX_OWED], owed_roots[:MAX_OWED]
