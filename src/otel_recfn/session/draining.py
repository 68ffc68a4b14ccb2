"""Draining: hands what was recorded to the captures.

    recorder.drain() ────────────────────────┬─► each capture's view of the batch ──► its sinks
    producers' take() ──► placed in the tree ┘

Producers are asked before the recorder is, and what they gave is delivered after what it gave: by then each range that one of
theirs lies in has been drained, as a row or as an open range.

Nothing is drained while a capture waits for memory, or for a sink that does (``has_room``), but where another begins or ends.
What is recorded stays in the recorder's buffers, which keep room for the ends of open ranges and count new ones that do not
fit: no range is lost that earlier rows lie in.

One lock is held over every drain and its delivery.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from otel_recfn.batches.placement import Placement
from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import ATTEMPTS, OUT_OF_MEMORY, PAUSE_SECONDS
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.capture import Capture
from otel_recfn.session.captures import Captures
from otel_recfn.session.open_ranges import Looks
from otel_recfn.session.sources import Sources
from otel_recfn.support.thread_time import ThreadTime, wait_while_it_computes
from otel_recfn.support.timed_lock import take_in_time

log = logging.getLogger("otel_recfn")


class Draining:
    """Drains, one thread at a time. Every method may be called from any thread.

    Args:
        recorder: what is drained.
        captures: who gets it.
        sources: may have batches beside the recorder's.
    """

    def __init__(self, recorder: Recorder, captures: Captures, sources: Sources) -> None:
        self._recorder, self._captures, self._sources = recorder, captures, sources
        self.lock = threading.RLock()
        self._holder: int | None = None
        """The thread that holds the lock."""
        self._time = ThreadTime()
        """Its own."""
        self._given_up: list[Capture] = []
        self._looks = Looks()
        self._placement: Placement | None = None
        """While there are producers."""
        self._produced: list[Batch] = []
        """What they gave, until the recorder's part is delivered."""
        self._left: Capture | None = None
        """The one that the last batch was the last for."""
        self._failed = False

    @contextmanager
    def held(self, timeout_s: float = -1) -> Iterator[bool]:
        """Keep other threads from draining meanwhile. Yields False if the lock couldn't be taken in time."""
        try:
            with self._hold(timeout_s) as held:
                yield held
        finally:
            self.close_given_up()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread drains: a sink that is written to or flushed calls."""
        return self._holder == threading.get_ident()

    def wait_for_others(self, timeout_s: float) -> None:
        """Until nobody else drains: so long, and then as long as who does computes, on an overloaded machine say."""
        if not self._is_free(timeout_s):
            wait_while_it_computes(self._worked_s, self._is_free)

    def _worked_s(self) -> float:
        return self._time.seconds()

    def _is_free(self, timeout_s: float) -> bool:
        with self._hold(timeout_s) as held:
            return held

    @contextmanager
    def _hold(self, timeout_s: float) -> Iterator[bool]:
        lock = self.lock  # a sink may fork, and the child has another one
        own, taken = threading.get_ident(), list[threading.RLock]()
        outer = own if self._holder == own else None
        try:
            take_in_time(lock, timeout_s, taken)
            if taken:
                self._holder = own
                self._time.begin()
            yield bool(taken)
        finally:
            if taken:
                self._holder = outer
                lock.release()

    def drain(self, *, close_open: bool = False, leaving: Capture | None = None, open_ranges: bool = False) -> Batch | None:
        """Drain once, and deliver. None where no capture runs, or the drain failed.

        Args:
            close_open: seal ranges that are open as partial ones.
            leaving: ends with this batch, if it is complete.
            open_ranges: the batch has copies of ranges that are open, whether the captures need them or not.
        """
        try:
            with self.held():
                return self._drain(close_open, leaving, open_ranges) if self._captures else None
        except OUT_OF_MEMORY:  # what was drained is kept, and handed out before the next drain
            return None

    def drain_last(self, capture: Capture, *, others: bool) -> None:
        """Drain all for a capture that ends; again and again for a while where there is no memory."""
        failed = 0
        while failed < ATTEMPTS:
            batch = self.drain_all(leaving=capture) if others else self.drain_all(close_open=True)
            if batch is not None or self._left is capture:
                break
            failed += 1
            time.sleep(PAUSE_SECONDS)
        with suppress(*OUT_OF_MEMORY):  # what was not handed out waits for the next drain
            self._hand_out()

    def drain_all(self, *, close_open: bool = False, leaving: Capture | None = None, open_ranges: bool = False) -> Batch | None:
        """Drain until nothing waits; where memory is short that may take several batches. The last, or None as ``drain``."""
        batch = self.drain(close_open=close_open, leaving=leaving, open_ranges=open_ranges)
        while batch is not None and not batch.complete:
            batch = self.drain(close_open=close_open, leaving=leaving, open_ranges=open_ranges)
        return batch

    def give_up(self, capture: Capture) -> None:
        """Close a capture that ended while its sinks were being written to, once they no longer are."""
        self._given_up.append(capture)
        self.close_given_up()

    def close_given_up(self) -> None:
        """Close captures that were given up, unless a sink is still written to.

        Who writes calls this afterwards: a file that is closed under its writer may be another file by its next write.
        """
        if self._given_up:
            with self._hold(0.0) as held:
                while held and self._given_up:
                    self._given_up.pop().close(0.0)

    def after_fork_in_child(self) -> None:
        """In a child, where no other thread drains."""
        self.lock, self._holder, self._given_up = threading.RLock(), None, []
        self._placement, self._produced, self._left = None, [], None

    def _drain(self, close_open: bool, leaving: Capture | None, open_ranges: bool) -> Batch | None:
        now = close_open or open_ranges or leaving is not None
        self._hand_out(now=now)
        self._sources.look(last=close_open)
        self._take_produced(last=close_open)
        look = self._looks.is_due(self._captures.open_range_s)
        wanted = look or open_ranges or self._captures.need_open_ranges or self._placement is not None
        try:
            batch = self._recorder.drain(close_open=close_open, open_ranges=wanted and not close_open)
            self._captures.drained.append(self._captures.due(batch, leaving=leaving, look=look))
        except Exception:
            self._tell_failed()
            return None
        self._left = leaving if batch.complete else None
        if look and batch.complete:
            self._looks.done()
        self._note(batch)
        if batch.clock_jump_ns:
            self._tell_clock_jump(batch.clock_jump_ns / 1e9)
        self._hand_out(now=now)
        if batch.complete:
            self._deliver_produced(batch, now)
        return batch

    def _hand_out(self, *, now: bool = False) -> None:
        """Hand out what was drained, also what there was no memory for before.

        Args:
            now: a capture begins or ends: it doesn't wait for others that have no memory.

        Raises:
            MemoryError: there was none again.
        """
        try:
            self._captures.hand_out()
        except OUT_OF_MEMORY:
            if not now or self._captures.drained:
                raise

    def _note(self, batch: Batch) -> None:
        try:
            if self._placement is not None:
                self._placement.note(batch)
        except OUT_OF_MEMORY:  # what producers gave waits, and may be top-level then; the batch itself is delivered
            self._placement = None

    def _take_produced(self, *, last: bool) -> None:
        if not self._sources.produce:
            self._placement, self._produced = None, []
            return
        self._placement = self._placement or Placement()
        if last or not self._produced:
            self._produced += self._sources.take(last=last)

    def _deliver_produced(self, drained: Batch, now: bool) -> None:
        while self._placement is not None and self._produced:
            placed = self._placement.placed(self._produced[0])
            self._captures.drained.append(self._captures.due_beside(placed, drained))
            del self._produced[0]
            self._hand_out(now=now)

    def _tell_clock_jump(self, seconds: float) -> None:
        """Report a jump of the wall clock in the log, and as a mark among the ranges."""
        log.warning(
            "the wall clock jumped by %+.3f s (it was set, or the machine slept); durations are right and new ranges have the "
            "new time, but ranges that are open now keep to the clock that they began with",
            seconds,
        )
        self._recorder.mark(f"wall clock jumped by {seconds:+.3f} s")

    def _tell_failed(self) -> None:
        """Log that a drain failed, once: where memory is short, many in a row may fail."""
        if not self._failed:
            self._failed = True
            log.exception("draining failed; what was recorded waits for the next drain, and what doesn't fit is counted")
