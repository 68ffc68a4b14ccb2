"""What a range spent in itself: its own amount without its direct children's. Times also across batches.

And ranges summed up by name.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.ancestry import Ids
from otel_recfn.batches.number_sets import is_in
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import ORDINAL_BITS, OVERLAPPING, EventKind

Amounts = NDArray[np.int64]
Rows = NDArray[np.int64]

MAX_AWAITED = 1 << 16
"""More ranges are open at once only where hundreds of threads are at their greatest depth."""
_ORDINAL = np.uint64(ORDINAL_BITS)


class Nesting(NamedTuple):
    """Who lies directly in whom, as columns of equal length."""

    child: Rows
    """Rows whose parent is in the batch too."""
    parent: Rows
    """The rows of these parents."""


def nesting(rows: Batch) -> Nesting:
    """Found once for all that is asked below."""
    child = np.flatnonzero(rows.parent != 0)
    if not len(child):
        return Nesting(child, child)
    order = np.argsort(rows.event_id)
    place: Rows = order[np.minimum(np.searchsorted(rows.event_id, rows.parent[child], sorter=order), len(order) - 1)]
    found = rows.event_id[place] == rows.parent[child]
    return Nesting(child[found], place[found])


def self_times(rows: Batch, nested: Nesting) -> Amounts:
    """Nanoseconds per row, as ``SelfTimes`` says, of rows that are all there is."""
    return SelfTimes().take(rows, nested)


class SelfTimes:
    """What each range of a stream of batches spent without its direct children, however the rows are cut into batches.

    A child counts where it ran on its parent's thread, one after the other: what ran beside it (asynchronous ranges, other
    threads) doesn't shorten it, nor does what ended after it. Source: ``FunctionEvent.self_cpu_time_total`` of
    torch.autograd.profiler_util. So a child's row stands before its parent's, and what it spent is kept until that comes.

    Args:
        most: how many parents are awaited; of more, those that children were added to longest ago are forgotten.
    """

    def __init__(self, most: int = MAX_AWAITED) -> None:
        self._most = most
        self._awaited: Ids = np.zeros(0, np.uint64)
        """Parents that haven't come, in ascending order."""
        self._spent: Amounts = np.zeros(0, np.int64)
        """By their children, up to now."""
        self._added: Amounts = np.zeros(0, np.int64)
        """The number of the batch that added to it last."""
        self._batches = 0

    def take(self, rows: Batch, nested: Nesting | None = None) -> Amounts:
        """Nanoseconds per row of the next batch; 0 for asynchronous ranges, marks and memory.

        Args:
            rows: the batch.
            nested: its ``nesting``, where that is known.
        """
        child, parent = nested if nested is not None else nesting(rows)
        synchronous = (rows.kind == EventKind.RANGE) & (rows.flags & OVERLAPPING == 0)
        spent: Amounts = np.where(synchronous, rows.end_ns - rows.start_ns, 0)
        counts = synchronous & (rows.event_id >> _ORDINAL == rows.parent >> _ORDINAL)
        inside = counts[child] & synchronous[parent] & (child < parent)
        own = _without(spent, child[inside], parent[inside]) - np.where(synchronous, self._spent_before(rows.event_id), 0)
        counts[child] = False  # their parents are here
        self._await(rows.parent[counts], spent[counts], rows.event_id)
        return own

    def _spent_before(self, ids: Ids) -> Amounts:
        """What children of these ranges spent in earlier batches."""
        if not len(self._awaited):
            return np.zeros(len(ids), np.int64)
        place = np.minimum(np.searchsorted(self._awaited, ids), len(self._awaited) - 1)
        return np.where(self._awaited[place] == ids, self._spent[place], 0)

    def _await(self, parents: Ids, spent: Amounts, came: Ids) -> None:
        self._batches += 1
        waiting = ~is_in(self._awaited, came)
        ids = np.concatenate([self._awaited[waiting], parents])
        amounts = np.concatenate([self._spent[waiting], spent])
        added = np.concatenate([self._added[waiting], np.full(len(parents), self._batches)])
        order = np.argsort(ids, kind="stable")
        first = np.flatnonzero(np.append(True, ids[order][1:] != ids[order][:-1])[: len(ids)])
        if len(first):
            self._awaited, self._spent = ids[order][first], np.add.reduceat(amounts[order], first)
            self._added = np.maximum.reduceat(added[order], first)
        else:
            self._awaited, self._spent, self._added = ids, amounts, added
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        if len(self._awaited) > self._most:
            newest = np.sort(np.argsort(self._added, kind="stable")[-self._most :])
            self._awaited, self._spent, self._added = self._awaited[newest], self._spent[newest], self._added[newest]


def allocated_bytes(rows: Batch, nested: Nesting) -> Amounts:
    """Bytes per row that were allocated within it and its descendants, less those that were freed; any device."""
    total: Amounts = np.where(rows.kind == EventKind.MEMORY, rows.nbytes, 0)
    reports = np.flatnonzero(total)
    if not len(reports):
        return total
    above = np.full(len(rows), -1, np.int64)
    above[nested.child] = nested.parent
    amounts, reached = total[reports], above[reports]
    while len(reached):
        inside = reached >= 0
        amounts, reached = amounts[inside], reached[inside]
        np.add.at(total, reached, amounts)
        reached = above[reached]
    return total


def self_bytes(rows: Batch, allocated: Amounts, nested: Nesting) -> Amounts:
    """Per row what it allocated (``allocated_bytes``) without its direct child ranges."""
    child, parent = nested
    counts = (allocated[child] != 0) & (rows.kind[child] == EventKind.RANGE)
    return _without(allocated, child[counts], parent[counts])


def _without(amounts: Amounts, child: Rows, parent: Rows) -> Amounts:
    own: Amounts = amounts.copy()
    np.subtract.at(own, parent, amounts[child])
    return own


class ByName:
    """The ranges of a batch, a group for each name, in the order in which the names first began.

    Args:
        batch: the batch.
        with_shapes: a group for each name with the same input shapes.

    Attributes:
        first: of each group, the row that began first.
        counts: how many ranges each group has.
    """

    def __init__(self, batch: Batch, *, with_shapes: bool = False) -> None:
        ranges = np.flatnonzero(batch.kind == EventKind.RANGE)
        ranges = ranges[np.argsort(batch.start_ns[ranges], kind="stable")]
        keys = batch.name[ranges].astype(np.uint64)
        if with_shapes:
            keys = keys << np.uint64(32) | batch.shapes[ranges]
        by_key = np.argsort(keys, kind="stable")
        ordered = keys[by_key]
        self._rows = ranges[by_key]
        self._begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        self._in_order = np.argsort(by_key[self._begins])
        self.first: Rows = self._rows[self._begins][self._in_order]
        self.counts: Amounts = np.diff(np.append(self._begins, len(ordered)))[self._in_order]

    def sums(self, amounts: Amounts) -> Amounts:
        """The sum of each group.

        Args:
            amounts: one for each row of the batch.
        """
        if not len(self._rows):
            return np.zeros(0, np.int64)
        summed: Amounts = np.add.reduceat(amounts[self._rows], self._begins)[self._in_order]
        return summed
