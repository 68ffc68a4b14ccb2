"""The program's spans as slices above the ranges that ran while they were current.

    thread    ┌ POST /train ────────────────────┐   ┌ POST /train ─┐     a slice per stretch in which the thread worked for it
              │ ┌ load ───────┐                 │   │              │     a span's child lies in it
              │ │ aten::copy_ │    aten::linear │   │ aten::mm     │     ranges

Rows say which span was current when their outermost range began. A stretch of a thread's rows of one span is a slice from the
first one's begin to the last one's end, so it nests in what is around these rows. The span's own begin and end are taken if
nothing else of the thread is between: rows come in the order of ends, so begins are looked up by number.
While a task waits, the thread may work for another one, whose rows end the stretch: slices of two tasks never overlap.

One thing is not known when a stretch ends: whether an open range began within it (a task that waits inside a range,
for instance). Event ids count a thread's begins, so that a stretch without gaps has none. One with a gap gets a track of its
own, where it can't lie across that range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import ORDINAL_BITS, ORDINAL_MASK, OVERLAPPING, make_event_id

MOST_DEPTH = 32
"""The most spans that lie in each other in the file."""
MOST_THREADS = 256
"""The most threads that are followed; their slices that aren't over are written again with each batch."""
MOST_OPEN = 4096
"""The most open ranges that are known, the newest ones."""
_NEVER_NS = (1 << 63) - 1
FindSpan = Callable[[int, int], Any]
Key = tuple[int, int]
Ids = NDArray[np.uint64]
Times = NDArray[np.int64]


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
    """Whether it nests in the ranges of its thread. If not, it needs a track of its own."""


class _Rows(NamedTuple):
    """Successive rows of one thread, as one."""

    start_ns: int
    end_ns: int
    first: int
    """The lowest number of a begin."""
    last: int
    number: int

    def and_then(self, more: _Rows) -> _Rows:
        lower, higher = min(self.start_ns, more.start_ns), max(self.end_ns, more.end_ns)
        return _Rows(lower, higher, min(self.first, more.first), max(self.last, more.last), self.number + more.number)


class _Run(NamedTuple):
    """Successive rows of one thread and one span."""

    track: Track
    key: Key
    rows: _Rows
    row: tuple[int, int]
    """The number of the first row's begin, and when it ended."""


class _Stretch(NamedTuple):
    """A stretch of one span on one thread, as far as it has come."""

    key: Key
    rows: _Rows
    apart_ns: int
    """The latest end of a slice in this one that is of no span, on the thread's own track."""
    before: int
    """The highest number of a begin before the stretch."""
    before_ns: int
    """The time by which everything before it on the thread had ended, if it isn't still open."""
    begins_here: bool
    """Whether no other thread works for the span."""

    @property
    def nests(self) -> bool:
        """Whether no begin within it is missing."""
        return self.rows.last - self.rows.first + 1 == self.rows.number


class _Thread(NamedTuple):
    """A thread, as far as it is known."""

    track: Track
    open: tuple[_Stretch, ...] = ()
    """The open stretches of spans in each other, the outermost first."""
    first: int = ORDINAL_MASK
    """The lowest number of a begin so far, also of a row that doesn't nest; 0 if earlier ones were forgotten."""
    last: int = 0
    """The highest number of a begin so far."""
    end_ns: int = 0
    """The end of its last row, or of its last slice that is over."""
    apart_ns: int = 0
    """The end of its last slice on the track of its own."""


class _Begins:
    """The begins of ranges, by event id, from rows and from announcements of open ranges. Never changes."""

    def __init__(self, ids: Ids, times: Times) -> None:
        self._ids, self._times = ids, times

    def after(self, batch: Batch) -> tuple[_Begins, _Begins]:
        """The begins that are known within a batch, and those of ranges that are open after it."""
        ids = np.concatenate((self._ids, batch.opened.columns["event_id"]))
        times = np.concatenate((self._times, batch.opened.columns["start_ns"]))
        places = np.flatnonzero(~is_in(ids, batch.event_id))[-MOST_OPEN:]
        known = _Begins(np.concatenate((ids, batch.event_id)), np.concatenate((times, batch.start_ns)))
        return known, _Begins(ids[places], times[places])

    @cached_property
    def _in_order(self) -> tuple[Ids, Times]:
        order = np.argsort(self._ids, kind="stable")
        return self._ids[order], self._times[order]

    def of(self, event_id: int) -> int | None:
        """The begin of a range, in Unix nanoseconds; None if it isn't known."""
        ids, times = self._in_order
        place = int(np.searchsorted(ids, np.uint64(event_id)))
        return int(times[place]) if place < len(ids) and int(ids[place]) == event_id else None

    def last_before(self, event_id: int) -> tuple[int, int] | None:
        """The latest known range of the same thread that began before that one: its event id, and its begin."""
        ids, times = self._in_order
        place = int(np.searchsorted(ids, np.uint64(event_id))) - 1
        if place < 0 or (int(ids[place]) ^ event_id) >> ORDINAL_BITS:
            return None
        return int(ids[place]), int(times[place])


_NO_BEGINS = _Begins(np.zeros(0, np.uint64), np.zeros(0, np.int64))


class SpanSlices:
    """The slices of each thread, as far as they are known. The object is replaced, never changed, so that one can go back.

    Args:
        find: the program's span with a trace id and a span id; None if it isn't known.
        threads, begins: what is known; of ranges that are open.
        forgotten_ns: when the last slice ended of threads that were forgotten; 0 if none was.
    """

    def __init__(
        self,
        find: FindSpan,
        threads: dict[int, _Thread] | None = None,
        begins: _Begins = _NO_BEGINS,
        forgotten_ns: int = 0,
    ) -> None:
        self._find, self._threads, self._begins, self._forgotten_ns = find, threads or {}, begins, forgotten_ns

    def after(self, batch: Batch) -> tuple[SpanSlices, list[SpanSlice]]:
        """The slices after a batch, and those that are over."""
        threads, over = dict(self._threads), list[SpanSlice]()
        begins, still_open = self._begins.after(batch)
        for run in _runs(batch):
            thread = self._take(threads, run.track, run.rows.first)
            elsewhere = {stretch.key for other in threads.values() for stretch in other.open} if run.key[1] else set()
            threads[run.track.number] = self._with_run(thread, run, elsewhere, begins, over)
        for track, first in _first_beside(batch):
            thread = self._take(threads, track, first)
            threads[track.number] = thread._replace(first=min(thread.first, first))
        return SpanSlices(self._find, threads, still_open, self._forget(threads, begins, over)), over

    def open(self) -> list[SpanSlice]:
        """The slices that are not over, as they are so far."""
        found: list[SpanSlice] = []
        for thread in self._threads.values():
            self._close(thread, 0, None, self._begins, found)
        return found

    def _with_run(self, thread: _Thread, run: _Run, elsewhere: set[Key], begins: _Begins, over: list[SpanSlice]) -> _Thread:
        keys = self._chain(thread, run)
        common = 0
        while common < min(len(keys), len(thread.open)) and thread.open[common].key == keys[common]:
            common += 1
        thread, rows = self._close(thread, common, run, begins, over), run.rows
        stretches = [stretch._replace(rows=stretch.rows.and_then(rows)) for stretch in thread.open]
        before = thread.apart_ns, thread.last, thread.end_ns
        stretches += [_Stretch(key, rows, *before, key not in elsewhere) for key in keys[common:]]
        first, last, end_ns = min(thread.first, rows.first), max(thread.last, rows.last), max(thread.end_ns, rows.end_ns)
        return thread._replace(track=run.track, open=tuple(stretches), first=first, last=last, end_ns=end_ns)

    def _chain(self, thread: _Thread, run: _Run) -> list[Key]:
        """The spans around a run, outermost first."""
        chain, parent = ([run.key], self._parent(run.key)) if run.key[1] else ([], None)
        while parent is not None and len(chain) < MOST_DEPTH and parent not in chain and self._find(*parent) is not None:
            chain.insert(0, parent)
            parent = self._parent(parent)
        if parent is None or parent in chain:
            return chain
        # The parent may be a range of ours, in the span that is open here.
        open_here = [stretch.key for stretch in thread.open if stretch.key[0] == run.key[0] and stretch.key not in chain]
        return [*[key for key in open_here if self._is_current(key, run.rows.start_ns)], *chain][-MOST_DEPTH:]

    def _parent(self, key: Key) -> Key | None:
        parent = getattr(self._find(*key), "parent", None)
        return (parent.trace_id, parent.span_id) if parent is not None else None

    def _is_current(self, key: Key, time_ns: int) -> bool:
        """Whether the span is known, and had not ended by then."""
        span = self._find(*key)
        end_ns = _time(span, "end_time")
        return span is not None and (end_ns is None or end_ns > time_ns)

    def _close(self, thread: _Thread, kept: int, run: _Run | None, begins: _Begins, over: list[SpanSlice]) -> _Thread:
        """End the stretches beyond the first ``kept``, as a run of another span shows that they are over."""
        closed, apart_ns = thread.open[kept:], thread.apart_ns
        if not closed:
            return thread
        starts = [self._start(thread, stretch, begins) for stretch in closed]
        ends = [self._end(thread, stretch, run, begins) for stretch in closed]
        for number, stretch in enumerate(closed):
            start_ns = min(starts[number:])
            end_ns = ends[number] = max(stretch.rows.end_ns, min(ends[: number + 1]))
            over.append(self._slice(thread, stretch, start_ns, end_ns))
            apart_ns = apart_ns if stretch.nests else max(apart_ns, end_ns)
        latest = max(ends)
        around = _Rows(min(starts), latest, ORDINAL_MASK, 0, 0)
        still = tuple([one._replace(rows=one.rows.and_then(around)) for one in thread.open[:kept]])
        return thread._replace(open=still, apart_ns=apart_ns, end_ns=max(thread.end_ns, latest))

    def _slice(self, thread: _Thread, stretch: _Stretch, start_ns: int, end_ns: int) -> SpanSlice:
        span = self._find(*stretch.key)
        name, parent_id = getattr(span, "name", None), getattr(getattr(span, "parent", None), "span_id", 0)
        name = name if isinstance(name, str) and name else f"span {stretch.key[1]:016x}"
        start_ns = start_ns if stretch.nests else max(start_ns, stretch.apart_ns)
        return SpanSlice(stretch.key, parent_id, name, thread.track, start_ns, max(start_ns, end_ns), stretch.nests)

    def _start(self, thread: _Thread, stretch: _Stretch, begins: _Begins) -> int:
        """The span's own start, if no range began on the thread in between, which might still be open."""
        first, start_ns = stretch.rows.first, stretch.rows.start_ns
        own = _time(self._find(*stretch.key), "start_time")
        if own is None or not stretch.begins_here or not stretch.before_ns <= own <= start_ns:
            return start_ns
        first_id = make_event_id(thread.track.number, first)
        latest = begins.last_before(first_id)
        if first == stretch.before + 1 or (latest is None and first == thread.first):  # it began when recording did
            return own
        return own if latest is not None and latest[0] == first_id - 1 and latest[1] <= own else start_ns

    def _end(self, thread: _Thread, stretch: _Stretch, run: _Run | None, begins: _Begins) -> int:
        """The span's own end, if the thread did nothing else before it, as far as is known.

        Else a nanosecond after its last range, if there is one: of two equal slices, readers take the first in the file as
        outer.
        """
        end_ns, free_ns = stretch.rows.end_ns, _free_until(thread, stretch, run, begins)
        own = _time(self._find(*stretch.key), "end_time")
        if own is not None and end_ns < own <= free_ns and (run is not None or stretch.begins_here):
            return own
        return max(end_ns, min(end_ns + 1, free_ns))

    def _take(self, threads: dict[int, _Thread], track: Track, first: int) -> _Thread:
        """A thread with a begin of that number, as it was. An unknown one may have been forgotten, unless it is its begin 1."""
        known, ended_ns = threads.pop(track.number, None), self._forgotten_ns
        if known is not None or first == 1 or not ended_ns:
            return known or _Thread(track)
        return _Thread(track, first=0, end_ns=ended_ns, apart_ns=ended_ns)

    def _forget(self, threads: dict[int, _Thread], begins: _Begins, over: list[SpanSlice]) -> int:
        """If there are many threads, end those that did nothing for longest. Returns when the last slice of them ended."""
        ended_ns = self._forgotten_ns
        while len(threads) > MOST_THREADS:
            thread = self._close(threads.pop(next(iter(threads))), 0, None, begins, over)
            ended_ns = max(ended_ns, thread.end_ns, thread.apart_ns)
        return ended_ns


def _runs(batch: Batch) -> list[_Run]:
    """The batch's rows that nest in their threads, thread by thread, if there is more than one span or thread."""
    rows = np.flatnonzero(_nests(batch))
    if not len(rows):
        return []
    rows = rows[np.argsort(batch.thread[rows], kind="stable")]
    thread, context = batch.thread[rows], batch.context[rows]
    changes = np.flatnonzero((thread[1:] != thread[:-1]) | (context[1:] != context[:-1])) + 1
    begins = np.concatenate(([0], changes))
    ordinals = batch.event_id[rows] & np.uint64(ORDINAL_MASK)
    starts, ends = batch.start_ns[rows], batch.end_ns[rows]
    low, high = np.minimum.reduceat(starts, begins), np.maximum.reduceat(ends, begins)
    first, last = np.minimum.reduceat(ordinals, begins), np.maximum.reduceat(ordinals, begins)
    counts = np.diff(np.append(begins, len(rows)))
    found: list[_Run] = []
    for number, begin in enumerate(begins.tolist()):
        track, ref = batch.tracks[thread[begin]], batch.contexts[context[begin]]
        one = _Rows(int(low[number]), int(high[number]), int(first[number]), int(last[number]), int(counts[number]))
        found.append(_Run(track, (ref.trace_id, ref.span_id), one, (int(ordinals[begin]), int(ends[begin]))))
    return found


def _first_beside(batch: Batch) -> list[tuple[Track, int]]:
    """The lowest number of a begin among the rows that don't nest, for each thread that has some."""
    rows = np.flatnonzero(~_nests(batch))
    threads, ids = batch.thread[rows], batch.event_id[rows]
    found = [(batch.tracks[thread], int(ids[threads == thread].min())) for thread in distinct(threads).tolist()]
    return [(track, event_id & ORDINAL_MASK) for track, event_id in found]


def _nests(batch: Batch) -> NDArray[np.bool_]:
    nests: NDArray[np.bool_] = ((batch.flags & OVERLAPPING) == 0) & (batch.thread == batch.end_thread)
    return nests


def _free_until(thread: _Thread, stretch: _Stretch, run: _Run | None, begins: _Begins) -> int:
    """The time until which the thread did nothing after a stretch, as far as the next run shows; None if there is no run."""
    next_ns = begins.of(make_event_id(thread.track.number, thread.last + 1))
    if run is not None and run.row[0] < stretch.rows.first:  # it is around them
        return min(run.row[1], _NEVER_NS if next_ns is None else next_ns)
    if next_ns is None:
        return _NEVER_NS if run is None else stretch.rows.end_ns
    return next_ns


def _time(span: Any, name: str) -> int | None:
    """A span's time; None if it isn't known, or isn't a time."""
    time = getattr(span, name, None)
    return int(time) if isinstance(time, (int, float)) and 0 <= time < 1 << 63 else None
