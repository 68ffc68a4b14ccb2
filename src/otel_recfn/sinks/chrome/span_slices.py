"""The program's spans as slices around the ranges that ran while they were current.

    thread    ┌ POST /train ──────────────┐   ┌ POST /train ─┐     a slice per stretch in which the thread worked for it
              │ ┌ load ───────┐           │   │              │     a span's child lies in it
              │ │ aten::copy_ │ aten::mm  │   │ aten::mm     │     ranges

Rows say which span was current when their outermost range began. A slice lasts from the begin of the first row in its span to
the end of the last one, so it nests in what is around these rows. While a task waits, the thread may work for another one,
whose rows end the stretch: slices of two tasks never overlap.

When a stretch ends, a range that began within it may still be open (that of a task that waits, for instance). Event ids count a
thread's begins, so that a stretch without gaps has none. One with a gap is an asynchronous event, which need not nest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import ORDINAL_MASK, OVERLAPPING

MOST_DEPTH = 32
"""The most spans that lie in each other in the file."""
MOST_THREADS = 256
"""The most threads that are followed; their slices that aren't over are written again with each batch."""
FindSpan = Callable[[int, int], Any]
Key = tuple[int, int]


class SpanSlice(NamedTuple):
    """A stretch of a thread's time in which a span was current. Times are in Unix nanoseconds."""

    key: Key
    parent_id: int
    """The parent's span id; 0 if there is none or it isn't known."""
    name: str
    track: Track
    start_ns: int
    end_ns: int
    nests: bool
    """Whether it nests in the ranges of its thread."""


class _Run(NamedTuple):
    """Successive rows of one thread and one span."""

    track: Track
    key: Key
    first_row: tuple[int, int]
    """The number of the first row's begin, and when it ended."""
    rows: _Rows


class _Rows(NamedTuple):
    """Rows of one thread, as one."""

    start_ns: int
    end_ns: int
    first: int
    """The lowest number of a begin."""
    last: int
    number: int

    def and_then(self, more: _Rows) -> _Rows:
        start_ns, end_ns = min(self.start_ns, more.start_ns), max(self.end_ns, more.end_ns)
        return _Rows(
            start_ns,
            end_ns,
            min(self.first, more.first),
            max(self.last, more.last),
            self.number + more.number,
        )

    def end_before(self, run: _Run | None) -> int:
        """A nanosecond after the last row, if the run shows that nothing else is there: readers take the first in the file of
        two equal slices as the outer one."""
        if run is None or run.rows.first == self.last + 1:
            next_ns = self.end_ns + 1 if run is None else run.rows.start_ns
        else:  # a range around these, or it isn't known what came next
            next_ns = run.first_row[1] if run.first_row[0] < self.first else self.end_ns
        return max(self.end_ns, min(self.end_ns + 1, next_ns))


Stretches = tuple[tuple[Key, _Rows], ...]
"""The spans that are current in a thread, in each other, the outermost first, and the rows in each so far."""


class SpanSlices:
    """The slices of each thread, as far as they are known. The object is replaced, never changed, so that one can go back.

    Args:
        find: the program's span with a trace id and a span id; None if it isn't known.
        threads: the threads with open stretches, by number.
    """

    def __init__(
        self, find: FindSpan, threads: dict[int, tuple[Track, Stretches]] | None = None
    ) -> None:
        self._find, self._threads = find, threads or {}

    def after(self, batch: Batch) -> tuple[SpanSlices, list[SpanSlice]]:
        """The slices after a batch, and those that are over."""
        threads, over = dict(self._threads), list[SpanSlice]()
        for run in _runs(batch):
            _, stretches = threads.pop(run.track.number, (run.track, ()))
            keys, kept = self._chain(stretches, run), 0
            while kept < min(len(keys), len(stretches)) and stretches[kept][0] == keys[kept]:
                kept += 1
            over += self._slices(run.track, stretches[kept:], run)
            goes_on = [(key, rows.and_then(run.rows)) for key, rows in stretches[:kept]]
            threads[run.track.number] = (
                run.track,
                (*goes_on, *[(key, run.rows) for key in keys[kept:]]),
            )
        while len(threads) > MOST_THREADS:  # the one that did nothing for longest
            over += self._slices(*threads.pop(next(iter(threads))), None)
        return SpanSlices(self._find, threads), over

    def open(self) -> list[SpanSlice]:
        """The slices that are not over, as they are so far."""
        return [
            one
            for track, stretches in self._threads.values()
            for one in self._slices(track, stretches, None)
        ]

    def _slices(self, track: Track, stretches: Stretches, run: _Run | None) -> list[SpanSlice]:
        """The slices of stretches, which the run, if there is one, has ended."""
        found = []
        for key, rows in stretches:
            span, nests = self._find(*key), rows.last - rows.first + 1 == rows.number
            name, parent_id = (
                getattr(span, "name", None),
                getattr(getattr(span, "parent", None), "span_id", 0),
            )
            name = name if isinstance(name, str) and name else f"span {key[1]:016x}"
            found.append(
                SpanSlice(key, parent_id, name, track, rows.start_ns, rows.end_before(run), nests)
            )
        return found

    def _chain(self, stretches: Stretches, run: _Run) -> list[Key]:
        """The spans around a run, outermost first."""
        chain, parent = ([run.key], self._parent(run.key)) if run.key[1] else ([], None)
        while (
            parent is not None
            and len(chain) < MOST_DEPTH
            and parent not in chain
            and self._find(*parent) is not None
        ):
            chain.insert(0, parent)
            parent = self._parent(parent)
        if parent is None or parent in chain:
            return chain
        # The parent may be a range of ours, in the span that is open here.
        open_here = [key for key, _ in stretches if key[0] == run.key[0] and key not in chain]
        return [*[key for key in open_here if self._is_current(key, run.rows.start_ns)], *chain][
            -MOST_DEPTH:
        ]

    def _parent(self, key: Key) -> Key | None:
        parent = getattr(self._find(*key), "parent", None)
        return (parent.trace_id, parent.span_id) if parent is not None else None

    def _is_current(self, key: Key, time_ns: int) -> bool:
        """Whether the span is known, and had not ended by then."""
        span = self._find(*key)
        end_ns = getattr(span, "end_time", None)
        return span is not None and (end_ns is None or end_ns > time_ns)


def _runs(batch: Batch) -> list[_Run]:
    """The batch's rows that nest in their threads, thread by thread."""
    rows = np.flatnonzero(((batch.flags & OVERLAPPING) == 0) & (batch.thread == batch.end_thread))
    if not len(rows):
        return []
    rows = rows[np.argsort(batch.thread[rows], kind="stable")]
    thread, context = batch.thread[rows], batch.context[rows]
    changes = np.flatnonzero((thread[1:] != thread[:-1]) | (context[1:] != context[:-1])) + 1
    begins = np.concatenate(([0], changes))
    ordinals = batch.event_id[rows] & np.uint64(ORDINAL_MASK)
    starts, ends = batch.start_ns[rows], batch.end_ns[rows]
    of_runs = (
        np.minimum.reduceat(starts, begins),
        np.maximum.reduceat(ends, begins),
        np.minimum.reduceat(ordinals, begins),
        np.maximum.reduceat(ordinals, begins),
        np.diff(np.append(begins, len(rows))),
    )
    found: list[_Run] = []
    for begin, *values in zip(begins.tolist(), *[each.tolist() for each in of_runs], strict=True):
        ref, first_row = batch.contexts[context[begin]], (int(ordinals[begin]), int(ends[begin]))
        found.append(
            _Run(
                batch.tracks[thread[begin]], (ref.trace_id, ref.span_id), first_row, _Rows(*values)
            )
        )
    return found
