"""A capture: what somebody asked to be recorded, and the sinks that receive it.

sealed batch ──► what the capture sees of it ──► each sink in turn (``guarded_sinks.py``)

A batch waits for a sink that has no room for it (``has_room``), and keeps those behind it waiting, until the capture ends or
more than ``MOST_WAITING`` wait.

A sink, or a signal handler that interrupts it, may flush, stop and start captures. Batches that are drained for its own capture
meanwhile, and the end of the capture, wait until all sinks have the batch that is being written: they come in order. So does
a batch that there is no memory to hand on: it waits for the next one, and counts as missed where the capture ends before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from otel_recfn.batches.selection import Selected, Selection
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY, tells_of_no_memory
from otel_recfn.session.guarded_sinks import GuardedSinks
from otel_recfn.session.open_ranges import open_for, without_copies
from otel_recfn.sinks.protocol import Sink
from otel_recfn.sources.range_spans import ShownRanges, SpansOfRanges

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
        self.selection = Selection(selected)
        began = self.selection.has_begun_before
        self.shown = ShownRanges(selected.takes, spans, began) if spans is not None else None
        self.buffer_bytes, self.open_range_s, self.exit_timeout_s = buffer_bytes, open_range_s, exit_timeout_s
        self._told_open = False
        """What sinks were told last is that ranges are open for long."""
        self.sinks = GuardedSinks(sinks)
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
        return self.sinks.wants_unsampled

    @property
    def tells_of_spans(self) -> bool:
        """Whether one of its sinks may tell of the program's spans around ranges."""
        return self.sinks.tells_of_spans

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
        except OUT_OF_MEMORY:  # by itself: to ask about an error may need memory
            if due is not None:
                self._undelivered.appendleft(due)  # where it has just been: that needs no memory
            raise
        except Exception as error:
            if due is not None and tells_of_no_memory(error):
                self._undelivered.appendleft(due)
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
            self.sinks.write(due, due.seen, self._may_wait)
        self._delivered, due.done = self.rows, True
        self.sinks.forget_what_is_done()
        if due.open is not None:
            self._tell_open(due.open)

    def _tell_open(self, ranges: Batch) -> None:
        if not len(ranges) and not self._told_open:
            return
        self.sinks.write_open(ranges)
        self._told_open = len(ranges) > 0

    def _may_wait(self) -> bool:
        return not self._ending and len(self._undelivered) < MOST_WAITING

    def note_drained(self, drained_ns: int) -> None:
        """Tell the sinks that they have what had ended when a drain began, before they are flushed."""
        if not self._delivering:
            self.sinks.note_drained(drained_ns)

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
            return self.sinks.flush(deadline, beside_writes)
        finally:
            self._flushing.discard(own)

    def process_ends(self) -> None:
        """Tell the sinks that ``close`` comes because the process ends."""
        self.sinks.process_ends(self.exit_timeout_s)

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
        self.sinks.close(deadline)

    def counters(self) -> dict[str, int]:
        """``rows`` and every sink's counters as ``<sink>.<counter>``; also the rows ``missed`` where a ``write`` raised.

        These are the rows that it raised on, and, where the sink was removed for it, all that came since.
        """
        if self._closed:
            self._miss_what_waits()
        return {"rows": self.rows} | self.sinks.counters(self._delivered)

    def _miss_what_waits(self) -> None:
        """Nobody gets any more what there was no memory for: count it."""
        rows = self.rows + sum([due.batch.closed for due in {*self._undelivered} if due.seen is None and not due.done])
        nothing: deque[Due] = deque()
        self.rows, self._delivered, self._undelivered = rows, rows, nothing

    def lost(self) -> dict[str, int]:
        """Those of ``counters`` that say what was lost: ``missed``, and what a sink has in ``losses``."""
        names = self.sinks.losses()
        return {name: count for name, count in self.counters().items() if name in names}

    def after_fork_in_child(self) -> None:
        """Go on with the sinks that are fit for a forked child; counts begin anew."""
        self.selection = Selection(self.selected)
        self._undelivered, self._delivering, self._close_by, self._flushing = deque(), False, None, set()
        self._told_open = False
        self.rows = self._delivered = 0
        self.sinks.after_fork_in_child()
