"""A capture: what somebody asked to be recorded, and the sinks that receive it.

sealed batch ──► each sink in turn; one that raises is closed, taken out and logged once, but goes on after a MemoryError

A batch waits for a sink that has no room for it (``has_room``), and keeps those behind it waiting, until the capture ends or
more than ``MOST_WAITING`` wait.

A sink, or a signal handler that interrupts it, may flush, stop and start captures. Batches that are drained for its own capture
meanwhile, and the end of the capture, wait until all sinks have the batch that is being written: they come in order. So does
a batch that there is no memory to hand on: it waits for the next one, and counts as missed where the capture ends before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from otel_recfn.batches.selection import Selected, Selection
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import ATTEMPTS, OUT_OF_MEMORY, PAUSE_SECONDS
from otel_recfn.session.open_ranges import open_for, without_copies
from otel_recfn.sinks.protocol import (
    Sink,
    asks_for_room,
    flushes_beside_writes,
    has_room,
    is_told_of_open_ranges,
    losses_of,
    tell_of_process_end,
    wants_unsampled,
)
from otel_recfn.sources.range_spans import ShownRanges, SpansOfRanges

log = logging.getLogger("otel_recfn")
MOST_WAITING = 64
"""So many batches wait for a sink's room: each capture that ends beside this one may add one more."""
MOST_AT_ONCE = 64
"""So many batches that come while others are handed on are handed on with them; a sink that records makes one by each write."""
MOST_UNDELIVERED = 1024
"""What comes while so many batches wait is counted as missed: only sinks that make more batches than they take get there."""
T = TypeVar("T")
View: TypeAlias = "Callable[[Capture, Batch], Batch]"
"""Makes what a capture sees of a batch."""


def taken_from(queue: deque[T]) -> T | None:
    """The first of a queue, out of it. None where it is empty: a signal handler may have taken the last one."""
    try:
        return queue.popleft()
    except IndexError:
        return None


def whole(_capture: Capture, batch: Batch) -> Batch:
    """All of it."""
    return batch


@dataclass(eq=False)
class Due:
    """A batch that not all sinks of a capture have got."""

    batch: Batch
    view: View
    look: bool = False
    """The capture is told which ranges are open for long."""
    seen: Batch | None = None
    """The capture's view of it, once it was made and its rows are counted."""
    open: Batch | None = None
    """Those ranges, in the view; None where nobody is to be told."""
    done: bool = False
    """They have got it."""


@dataclass(eq=False)
class _Handed:
    """A sink, and what it took."""

    sink: Sink
    last: Due | None = None
    """What its ``write`` was called with last."""
    rows: int = 0
    """Of the batches that its ``write`` took without an error."""
    without_memory: bool = False
    """It missed a batch for want of memory, which was logged."""
    asks_for_room: bool = False
    closed: bool = False


class Capture:
    """What is selected, and sinks. Used by one thread at a time (the session sees to that), and for one run.

    Args:
        selected: scopes, extras and sources.
        sinks: receive every sealed batch, in this order.
        buffer_bytes: bound of each recording thread's buffer.
        spans: where its ranges become spans, as which the program is to see them while they are current; None for nowhere.
        open_range_s: sinks are told of ranges that are open for so long; None: they are not.
        exit_timeout_s: how long the end of the process may wait for what is outside of this machine.
    """

    def __init__(
        self,
        selected: Selected,
        sinks: Iterable[Sink],
        *,
        buffer_bytes: int,
        spans: SpansOfRanges | None = None,
        open_range_s: float | None = None,
        exit_timeout_s: float = 2.0,
    ) -> None:
        self.selected = selected
        self.shown = ShownRanges(selected.takes, spans) if spans is not None else None
        self.selection = Selection(selected)
        self.buffer_bytes, self.open_range_s, self.exit_timeout_s = buffer_bytes, open_range_s, exit_timeout_s
        self._told_open = False
        """What sinks were told last is that ranges are open for long."""
        self._sinks = [_Handed(sink, asks_for_room=asks_for_room(sink)) for sink in sinks]
        self._removed: list[tuple[_Handed, dict[str, int]]] = []
        """With their last counters."""
        self._delivered = 0
        """Rows that every sink has taken or missed."""
        self._undelivered: deque[Due] = deque()
        self._delivering = False
        self._flushing: set[int] = set()
        """The threads that flush."""
        self._close_by: float | None = None
        self._ending = self._closed = False
        self.rows = 0
        self.was_delivered = True
        """Its sinks have got all that was recorded for it."""
        self.has_ended = False
        self.lost_in_all: dict[str, int] = {}

    @property
    def wants_unsampled(self) -> bool:
        """Whether one of its sinks has a use for ranges in spans that are not sampled."""
        return any([wants_unsampled(handed.sink) for handed in self._sinks])

    def write(self, batch: Batch, view: View = whole, look: bool = False) -> None:
        """Hand every sink the view of a batch. ``look``: and tell those that ask which of its open ranges are open for long.

        Raises:
            MemoryError: there was none to take it; the caller still has it.
        """
        self.take(Due(batch, view, look))
        try:
            self.go_on()
        except OUT_OF_MEMORY:  # the batch waits here, and is handed on with the next one
            pass

    def take(self, due: Due) -> None:
        """A batch to hand on. A signal handler that interrupts this may take it, too: it is handed on once.

        Raises:
            MemoryError: there was none to take it; the caller still has it.
        """
        if due.done:
            return
        if len(self._undelivered) < MOST_UNDELIVERED:
            self._undelivered.append(due)
        else:
            self.rows, due.done = self.rows + due.batch.closed, True

    def go_on(self) -> None:
        """Hand on what waits.

        Raises:
            MemoryError: there was none; it waits on.
        """
        left = len(self._undelivered) + MOST_AT_ONCE
        try:
            while self._undelivered and not self._delivering and not self._closed and left:
                left -= 1
                self._deliver_next()
        finally:
            if self._close_by is not None and not self._delivering:
                self._close(self._close_by)

    def _deliver_next(self) -> None:
        self._delivering = True
        due = None
        try:
            due = taken_from(self._undelivered)
            if due is not None:
                self._deliver(due)
        except OUT_OF_MEMORY:
            if due is not None:
                self._undelivered.appendleft(due)  # where it has just been: that needs no memory
            raise
        finally:
            self._delivering = False

    def _deliver(self, due: Due) -> None:
        if due.done:
            return
        if due.seen is None:
            view = due.view(self, due.batch)
            due.open = open_for(view, self.open_range_s) if due.look and self.open_range_s is not None else None
            seen = without_copies(view)
            rows = self.rows + len(seen)
            due.seen, self.rows = seen, rows
        if len(due.seen) or due.seen.opened:
            for handed in list(self._sinks):
                if handed.last is not due and self._has_room(handed):
                    self._guarded(handed, partial(_write, handed, due, due.seen), None)
            for handed in self._sinks:
                if handed.last is not due:
                    raise MemoryError
        self._delivered, due.done = self.rows, True
        if due.open is not None:
            self._tell_open(due.open)

    def _tell_open(self, ranges: Batch) -> None:
        if not len(ranges) and not self._told_open:
            return
        for handed in list(self._sinks):
            if is_told_of_open_ranges(handed.sink):
                self._guarded(handed, partial(_write_open, handed.sink, ranges), None)
        self._told_open = len(ranges) > 0

    def _has_room(self, handed: _Handed) -> bool:
        asks = handed.asks_for_room and not self._ending and len(self._undelivered) < MOST_WAITING
        return not asks or self._guarded(handed, partial(has_room, handed.sink), False)

    def flush(self, timeout_s: float) -> bool:
        """Flush the sinks that can't be flushed beside a write, within ``timeout_s`` seconds in all.

        False when that was not enough, or one of the sinks calls.
        """
        return not self._delivering and self._flush(time.monotonic() + timeout_s, beside_writes=False)

    def flush_beside_writes(self, timeout_s: float) -> bool:
        """Flush the others: from any thread, also while another one writes."""
        return self._flush(time.monotonic() + timeout_s, beside_writes=True)

    def _flush(self, deadline: float, beside_writes: bool) -> bool:
        own = threading.get_ident()
        if own in self._flushing:
            return False
        try:
            self._flushing.add(own)
            return self._flush_sinks(deadline, beside_writes)
        finally:
            self._flushing.discard(own)

    def _flush_sinks(self, deadline: float, beside_writes: bool) -> bool:
        wanted = [handed for handed in self._sinks if flushes_beside_writes(handed.sink) == beside_writes]
        flushed = [
            self._guarded(handed, partial(handed.sink.flush, max(0.0, deadline - time.monotonic())), False) for handed in wanted
        ]
        return all(flushed)

    def process_ends(self) -> None:
        """Tell the sinks that ``close`` comes because the process ends."""
        for handed in list(self._sinks):
            self._guarded(handed, partial(tell_of_process_end, handed.sink, self.exit_timeout_s), None)

    def close(self, timeout_s: float) -> None:
        """Close every sink within ``timeout_s`` seconds in all; where one of them calls, when they have what is drained."""
        deadline = time.monotonic() + timeout_s
        if self._delivering:
            self._close_by = deadline
        else:
            self._close(deadline)

    def _close(self, deadline: float) -> None:
        self._close_by, self._ending = None, True
        for _ in range(2):
            with suppress(*OUT_OF_MEMORY):  # what still waits then is counted as missed
                self.go_on()
        self._closed = True
        for handed in list(self._sinks):
            self._close_sink(handed, deadline)

    def _close_sink(self, handed: _Handed, deadline: float) -> None:
        """Also where some of the allocations for it fail: its thread and its file would be left."""
        failed = 0
        while not handed.closed and failed < ATTEMPTS and handed in self._sinks:
            if failed:
                time.sleep(PAUSE_SECONDS)
            self._guarded(handed, partial(_close, handed, deadline), None)
            failed += 1

    def counters(self) -> dict[str, int]:
        """``rows`` and every sink's counters as ``<sink>.<counter>``; also the rows ``missed`` where a ``write`` raised.

        These are the rows that it raised on, and, where the sink was removed for it, all that came since.
        """
        if self._closed:
            self._miss_what_waits()
        found = {"rows": self.rows}
        for handed in list(self._sinks):
            nothing: dict[str, int] = {}
            found.update(self._with_missed(handed, self._guarded(handed, partial(_counts, handed.sink), nothing)))
        for handed, counts in self._removed:
            found.update(self._with_missed(handed, counts))
        return found

    def _miss_what_waits(self) -> None:
        """Nobody gets any more what there was no memory for: count it."""
        rows = self.rows + sum([due.batch.closed for due in {*self._undelivered} if due.seen is None and not due.done])
        nothing: deque[Due] = deque()
        self.rows, self._delivered, self._undelivered = rows, rows, nothing

    def lost(self) -> dict[str, int]:
        """Those of ``counters`` that say what was lost: ``missed``, and what a sink has in ``losses``."""
        sinks = [handed.sink for handed in (*self._sinks, *[handed for handed, _ in self._removed])]
        names = {f"{sink.name}.{name}" for sink in sinks for name in (*losses_of(sink), "missed")}
        return {name: count for name, count in self.counters().items() if name in names}

    def _with_missed(self, handed: _Handed, counts: dict[str, int]) -> dict[str, int]:
        missed = self._delivered - handed.rows
        return _prefixed(handed.sink.name, {**counts, "missed": missed} if missed > 0 else counts)

    def after_fork_in_child(self) -> None:
        """Go on with the sinks that are fit for a forked child; counts begin anew."""
        self.selection = Selection(self.selected)
        self._undelivered, self._delivering, self._close_by, self._flushing = deque(), False, None, set()
        self._told_open = False
        inherited, self._sinks, self._removed = self._sinks, [], []
        self.rows = self._delivered = 0
        for handed in inherited:
            fresh = self._guarded(handed, handed.sink.after_fork_in_child, None)
            if fresh is not None:
                self._sinks.append(_Handed(fresh, asks_for_room=asks_for_room(fresh)))

    def _guarded(self, handed: _Handed, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except OUT_OF_MEMORY:
            if not handed.without_memory:
                handed.without_memory = True
                log.error("the sink %r found no memory; it goes on, and what it misses is counted", handed.sink.name)
            return otherwise
        except (Exception, SystemExit) as error:  # a sink can't end the program, or the thread that drains
            unexpected = not isinstance(error, OSError)  # a full disk needs no traceback
            log.error("the sink %r failed and was removed; the others go on: %r", handed.sink.name, error, exc_info=unexpected)
            self._remove(handed)
            return otherwise

    def _remove(self, handed: _Handed) -> None:
        if handed not in self._sinks:
            return
        self._sinks.remove(handed)
        counts: dict[str, int] = {}
        with suppress(Exception, SystemExit):  # it failed once already, which was logged
            handed.sink.close(0.0)
            counts = _counts(handed.sink)
        self._removed.append((handed, counts))


def _write(handed: _Handed, due: Due, seen: Batch) -> None:
    rows = handed.rows + len(seen)
    handed.last = due
    try:
        handed.sink.write(seen)
    except OUT_OF_MEMORY:
        if handed.asks_for_room:
            handed.last = None
        raise
    handed.rows = rows


def _write_open(sink: Sink, ranges: Batch) -> None:
    with suppress(*OUT_OF_MEMORY):  # nothing is lost: the next look has them all again
        sink.write_open(ranges)  # type: ignore[attr-defined]


def _close(handed: _Handed, deadline: float) -> None:
    handed.sink.close(max(0.0, deadline - time.monotonic()))
    handed.closed = True


def _counts(sink: Sink) -> dict[str, int]:
    return dict(sink.counters())


def _prefixed(name: str, counts: dict[str, int]) -> dict[str, int]:
    return {f"{name}.{key}": value for key, value in counts.items()}
