"""Runs of rows: successive rows of one thread in one span.

    thread    [ aten::mm ][ aten::add ]   [ aten::mm ]     rows
    span      POST /a      POST /a         POST /b
              └──────── run ─────────┘    └── run ───┘

Only rows that nest in their threads count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import ORDINAL_MASK, OVERLAPPING
from otel_recfn.sinks.chrome.heard_spans import Key


class Run(NamedTuple):
    """Successive rows of one thread and one span."""

    track: Track
    key: Key
    first_row: tuple[int, int]
    """The number of the first row's begin, and its end."""
    rows: Rows


class Rows(NamedTuple):
    """Rows of one thread, as one."""

    start_ns: int
    end_ns: int
    first: int
    """The lowest number of a begin."""
    last: int
    number: int

    def and_then(self, more: Rows) -> Rows:
        """These rows and more of them, as one."""
        return Rows(
            start_ns=min(self.start_ns, more.start_ns),
            end_ns=max(self.end_ns, more.end_ns),
            first=min(self.first, more.first),
            last=max(self.last, more.last),
            number=self.number + more.number,
        )

    def end_before(self, run: Run | None, longer_ns: int) -> int:
        """The end of a slice around these rows, this much after the last one: readers may take the
        inner one of two slices that end at once for the outer one.

        It is earlier if the next run of the thread shows that something else may be there.
        """
        longest_ns = self.end_ns + longer_ns
        if run is None or run.rows.first == self.last + 1:
            next_ns = longest_ns if run is None else run.rows.start_ns
        else:  # a range around these, or it isn't known what came next
            next_ns = run.first_row[1] if run.first_row[0] < self.first else self.end_ns
        return max(self.end_ns, min(longest_ns, next_ns))


def find_runs(batch: Batch) -> list[Run]:
    """The batch's rows that nest in their threads, thread by thread."""
    rows = np.flatnonzero(((batch.flags & OVERLAPPING) == 0) & (batch.thread == batch.end_thread))
    if not len(rows):
        return []
    rows = rows[np.argsort(batch.thread[rows], kind="stable")]
    thread = batch.thread[rows]
    context = batch.context[rows]
    changes = np.flatnonzero((thread[1:] != thread[:-1]) | (context[1:] != context[:-1])) + 1
    begins = np.concatenate(([0], changes))
    ordinals = batch.event_id[rows] & np.uint64(ORDINAL_MASK)
    ends = batch.end_ns[rows]
    columns = [
        np.minimum.reduceat(batch.start_ns[rows], begins),
        np.maximum.reduceat(ends, begins),
        np.minimum.reduceat(ordinals, begins),
        np.maximum.reduceat(ordinals, begins),
        np.diff(np.append(begins, len(rows))),
    ]
    values = [Rows(*row) for row in zip(*[column.tolist() for column in columns], strict=True)]
    found: list[Run] = []
    for begin, run_rows in zip(begins.tolist(), values, strict=True):
        span_context = batch.contexts[context[begin]]
        found.append(
            Run(
                track=batch.tracks[thread[begin]],
                key=(span_context.trace_id, span_context.span_id),
                first_row=(int(ordinals[begin]), int(ends[begin])),
                rows=run_rows,
            )
        )
    return found
