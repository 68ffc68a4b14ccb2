"""Draining: hands what was recorded to the captures.

    recorder.drain() ──► each capture's view of the batch ──► its sinks

One lock is held over every drain and its delivery.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from otel_recfn.model.batch import Batch
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.capture import Capture
from otel_recfn.session.captures import Captures
from otel_recfn.session.open_ranges import Looks
from otel_recfn.session.sources import Sources

log = logging.getLogger("otel_recfn")


class Draining:
    """Drains, one thread at a time. Every method may be called from any thread.

    Args:
        recorder: what is drained.
        captures: who gets it.
        sources: some of them look at what they watch.
    """

    def __init__(self, recorder: Recorder, captures: Captures, sources: Sources) -> None:
        self._recorder, self._captures, self._sources = recorder, captures, sources
        self.lock = threading.RLock()
        self._holder: int | None = None
        """The thread that holds the lock."""
        self._closing: list[tuple[Capture, float]] = []
        """Captures that have ended while a sink was written to, and until when they may take to close."""
        self._looks = Looks()
        self._failed = False

    @contextmanager
    def held(self, timeout_s: float = -1) -> Iterator[bool]:
        """Keep other threads from draining meanwhile. Yields False if the lock couldn't be taken in time."""
        try:
            with self._hold(timeout_s) as held:
                yield held
        finally:
            self.close_ended()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread drains: a sink that is written to or flushed calls."""
        return self._holder == threading.get_ident()

    @contextmanager
    def _hold(self, timeout_s: float) -> Iterator[bool]:
        lock = self.lock  # a sink may fork, and the child has another one
        if not lock.acquire(timeout=timeout_s):
            yield False
            return
        outer = self._holder  # None, or this thread
        self._holder = threading.get_ident()
        try:
            yield True
        finally:
            self._holder = outer
            lock.release()

    def drain(self, *, close_open: bool = False, leaving: Capture | None = None, open_ranges: bool = False) -> Batch | None:
        """Drain once, and deliver. None where no capture runs, or the drain failed.

        Args:
            close_open: seal ranges that are open as partial ones.
            leaving: ends with this batch.
            open_ranges: the batch has copies of ranges that are open, whether the captures need them or not.
        """
        with self.held():
            return self._drain(close_open, leaving, open_ranges) if self._captures else None

    def close_later(self, capture: Capture, deadline: float) -> None:
        """Close a capture that has ended while a sink was written to, once none is."""
        self._closing.append((capture, deadline))
        self.close_ended()

    def close_ended(self) -> None:
        """Close what is to be closed later, unless a sink is still written to.

        Who writes calls this afterwards: a file that is closed under its writer may be another file by its next write.
        """
        if self._closing:
            with self._hold(0.0) as held:
                ready = [entry for entry in self._closing if held and not entry[0].is_delivering]
                for entry in ready:
                    self._closing.remove(entry)
                    capture, deadline = entry
                    capture.close(max(0.0, deadline - time.monotonic()))

    def after_fork_in_child(self) -> None:
        """In a child, where no other thread drains."""
        self.lock, self._holder, self._closing = threading.RLock(), None, []

    def _drain(self, close_open: bool, leaving: Capture | None, open_ranges: bool) -> Batch | None:
        try:
            self._sources.look(last=close_open)
            look = self._looks.is_due(self._captures.open_range_s)
            wanted = look or open_ranges or self._captures.need_open_ranges
            batch = self._recorder.drain(close_open=close_open, open_ranges=wanted and not close_open)
            if look:
                self._looks.done()
            if batch.clock_jump_ns:
                self._tell_clock_jump(batch.clock_jump_ns / 1e9)
            self._captures.deliver(batch, leaving, look)
        except Exception:
            self._tell_failed()
            return None
        return batch

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
            log.exception("draining failed; what was lost by that is counted, and the next drain goes on")
