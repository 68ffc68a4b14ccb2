"""The memory that PyTorch allocated and freed in a process, where that was recorded.

A report of memory says how much, and not which block. So a block that is freed is taken for the
newest one of its size, as what a step makes for itself it frees before it ends:

    reports   +4 MiB   +1 MiB   -1 MiB   +1 MiB   -4 MiB
    in use       4        5        4        5        1        left: the second block of 1 MiB

PyTorch reports what is freed between operators only in the thread that began the recording, and in
what runs for it. Of other threads only the allocations would be seen, so these count in no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices, distinct, equals
from otel_recfn.model.events import RowKind
from otel_recfn.report.kinds import BACKWARD, OPERATOR
from otel_recfn.report.nesting import Numbers
from otel_recfn.report.ranges import RecordedRanges


class MemoryUse(NamedTuple):
    """The changes of a process' memory in order, as columns."""

    time_ns: Numbers
    nbytes: Numbers
    """What was allocated; negative: freed."""
    range: Indices
    """The range in which it changed; -1 if it was in none."""

    @property
    def in_use(self) -> Amounts:
        """The bytes in use after each change, beyond those at the first one."""
        return np.cumsum(self.nbytes)

    def at(self, times: Numbers) -> Amounts:
        """The bytes in use until each of these times, without changes at that very moment."""
        changes = np.searchsorted(self.time_ns, times)
        return np.append(0, self.in_use)[changes]

    def blocks_left(self, start_ns: int, end_ns: int) -> Indices:
        """The allocations between two moments that were not freed by the second one."""
        first, last = np.searchsorted(self.time_ns, [start_ns, end_ns]).tolist()
        by_size: dict[int, list[int]] = {}
        for change, nbytes in enumerate(self.nbytes[first:last].tolist(), first):
            if nbytes > 0:
                by_size.setdefault(nbytes, []).append(change)
            elif same := by_size.get(-nbytes):
                same.pop()
        left = [change for changes in by_size.values() for change in changes]
        return np.array(sorted(left), np.int64)


def memory_use(recorded: RecordedRanges, process: int) -> MemoryUse:
    """The changes of the memory of a process, in threads that report all of them."""
    batch = recorded.processes[process].batch
    rows = np.flatnonzero(equals(batch.kind, RowKind.MEMORY))
    rows = rows[np.argsort(batch.start_ns[rows], kind="stable")]
    ranges = np.flatnonzero(recorded.process == process)
    ids = batch.event_id[recorded.row[ranges]]
    order = np.argsort(ids)
    index = np.minimum(np.searchsorted(ids, batch.parent[rows], sorter=order), len(order) - 1)
    is_known = ids[order][index] == batch.parent[rows]
    use = MemoryUse(
        batch.start_ns[rows], batch.nbytes[rows], np.where(is_known, ranges[order][index], -1)
    )
    in_operator = np.append(np.isin(recorded.kind, (OPERATOR, BACKWARD)), np.False_)[use.range]
    thread = batch.thread[rows]
    counted = np.isin(thread, distinct(thread[(use.nbytes < 0) & ~in_operator]))
    return MemoryUse(*[column[counted] for column in use])
