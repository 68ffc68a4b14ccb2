"""Draining: hands what was recorded to the captures.

    recorder.drain() ──► each capture's view of the batch ──► its sinks

One lock is held over every drain and its delivery. A thread drains every 100 ms, every 250 ms while much is recorded, and at
once when the recorder says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.capture import Capture
from otel_recfn.session.captures import Captures
from otel_recfn.session.sources import Sources
from otel_recfn.support.own_thread import OwnThread, at_work

log = logging.getLogger("otel_recfn")

DRAIN_SECONDS = 0.1
BUSY_DRAIN_SECONDS = 0.25
BUSY_ROWS = 10_000
"""After a drain of more the next one comes later: what each batch costs, mostly with the GIL held, is then of more rows.
How much may wait in a thread's buffer is the recorder's to say."""


class Draining:
    """Drains, one thread at a time. Every method may be called from any thread; one at a time may start and stop ours.

    Args:
        recorder: what is drained.
        captures: who gets it.
        sources: some of them look at what they watch.
        also: called after each drain of our thread, with the lock held.
    """

    def __init__(self, recorder: Recorder, captures: Captures, sources: Sources, also: Callable[[], object]) -> None:
        self._recorder, self._captures, self._sources, self._also = recorder, captures, sources, also
        self.lock = threading.RLock()
        self._holder: int | None = None
        """The thread that holds the lock."""
        self._thread: OwnThread | None = None
        """Ours, from its start until it is told to end."""
        self._given_up: list[Capture] = []
        self._failed = False

    @contextmanager
    def held(self, timeout_s: float = -1) -> Iterator[bool]:
        """Keep other threads from draining meanwhile. Yields False if the lock couldn't be taken in time."""
        try:
            with self._hold(timeout_s) as held:
                yield held
        finally:
            if self._given_up:
                self.close_given_up()

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

    def give_up(self, capture: Capture) -> None:
        """Close a capture that ended while its sinks were being written to, once they no longer are."""
        self._given_up.append(capture)
        self.close_given_up()

    def close_given_up(self) -> None:
        """Close captures that were given up, unless a sink is still written to.

        Who writes calls this afterwards: a file that is closed under its writer may be another file by its next write.
        """
        with self._hold(0.0) as held:
            while held and self._given_up:
                self._given_up.pop().close(0.0)

    def start_thread(self) -> None:
        """Have a thread drain, unless one does. If there can be none, that is logged."""
        if self._thread is not None:
            return
        self._thread = thread = OwnThread(self._run, "otel-recfn drain")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here
            self._thread = None
            log.warning("no thread drains what is recorded (%s): it is delivered by flush() and at the end", error)

    def stop_thread(self) -> OwnThread | None:
        """Have the thread end after the drain that is under way. Returns it."""
        thread, self._thread = self._thread, None
        self._recorder.wake()
        return thread

    def after_fork_in_child(self) -> None:
        """In a child, where no other thread drains."""
        self.lock, self._holder, self._thread, self._given_up = threading.RLock(), None, None, []

    def _run(self) -> None:
        """In the thread, until it is stopped."""
        own, pause = threading.current_thread(), DRAIN_SECONDS
        with suppress_instrumentation():
            while self._thread is own:
                try:
                    self._recorder.wait(pause)
                    if self._thread is own:
                        pause = BUSY_DRAIN_SECONDS if self._drain_here() > BUSY_ROWS else DRAIN_SECONDS
                except Exception:  # no memory, say
                    self._tell_failed()

    def _drain_here(self) -> int:
        """In the thread. Returns the number of rows."""
        with self.lock, at_work():  # a fork takes them in this order
            batch = self.drain()
            self._also()
        return len(batch) if batch is not None else 0

    def _drain(self, close_open: bool, leaving: Capture | None, open_ranges: bool) -> Batch | None:
        try:
            self._sources.look(last=close_open)
            look = self._captures.is_look_due()
            wanted = look or open_ranges or self._captures.need_views
            batch = self._recorder.drain(close_open=close_open, open_ranges=wanted and not close_open)
            if look:
                self._captures.looked()
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
            with suppress(Exception):
                log.exception("draining failed; what was lost by that is counted, and the next drain goes on")
