"""Draining: hands what was recorded to the captures that run.

    recorder.drain() ──► each capture's view of the batch ──► its sinks

One lock is held over every drain and its delivery. A thread drains every 100 to 250 ms, and when the recorder asks.

As long as only one capture has run, what was recorded is its view. When others have joined it, each gets a view of its own,
made from batches that have copies of the open ranges (``batches/selection.py``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn import _native
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.model.python_calls import together
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture, seconds_to
from otel_recfn.session.sources import Sources
from otel_recfn.sources.protocol import Wanted
from otel_recfn.support.forks import OwnThread, at_work
from otel_recfn.support.signal_handlers import raised_by_signal_handler

log = logging.getLogger("otel_recfn")

DRAIN_SECONDS = 0.1
BUSY_DRAIN_SECONDS = 0.25
BUSY_ROWS = 10_000
"""The rows of a drain after which the next one comes later, so that the cost of a batch, mostly under the GIL, is for more
rows. The recorder says how much may wait in a thread's buffer."""

LOOKS = 4
"""The number of looks for open ranges within the time after which one is reported."""


class Captures:
    """The captures that run, and what they ask for together.

    The session lets one thread at a time change them or deliver to them; any thread may read.
    """

    def __init__(self) -> None:
        self._running: list[Capture] = []
        self.need_views = False
        """Whether captures need views: there was more than one, or the only one wants less than is recorded for it."""
        self.ending: set[Capture] = set()
        """The captures that are being stopped, running or not."""
        self._looked_s = time.monotonic()

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._running))

    def __contains__(self, capture: Capture) -> bool:
        return capture in self._running

    def __len__(self) -> int:
        return len(self._running)

    def is_look_due(self) -> bool:
        """Whether it is time to look for ranges that have been open for long.

        A look asks for copies of all open ranges, even if nothing else is drained, because a hang is silent.
        """
        shortest = min(
            (capture.open_range_s for capture in self if capture.open_range_s is not None),
            default=None,
        )
        return shortest is not None and time.monotonic() - self._looked_s >= shortest / LOOKS

    def begin(self, capture: Capture) -> bool:
        """Add the first capture; False if there are others."""
        if self._running:
            return False
        self.need_views = not capture.selected.is_all_that_is_recorded
        self._running.append(capture)
        return True

    def join(self, capture: Capture, batch: Batch | None, since_serial: int) -> None:
        """Add a capture beside others. ``batch`` was delivered to those, with copies of open ranges; None: its drain failed.

        ``since_serial`` is the recorder's, from before that drain.
        """
        if batch is not None:
            for other in self:
                if not self.need_views:
                    other.selection.go_on_after(batch)
            capture.selection.begin_after(batch, since_serial)
        self.need_views = True
        self._running.append(capture)
        for each in self:
            each.is_used = True

    def leave(self, capture: Capture) -> None:
        """Remove a capture, which gets no more batches. Nothing if it isn't there."""
        if capture in self._running:
            self._running.remove(capture)

    def deliver(self, batch: Batch, leaving: Capture | None, look: bool = False) -> None:
        """Hand each capture its view of a batch that was drained, and one that is ``leaving`` the open ranges as partial ones.

        ``look``: captures report ranges that are open for long.
        """
        if look:
            self._looked_s = time.monotonic()
        for capture in self:
            view = (
                partial(capture.selection.view, last=capture is leaving, copies=look)
                if self.need_views
                else None
            )
            capture.put(batch, view, look)
        for capture in (
            self
        ):  # only when all have queued it: a sink that is written to may drain, or end a capture
            capture.deliver()

    @property
    def all_end(self) -> bool:
        """Whether every capture is being stopped, or there is none."""
        return all(capture in self.ending for capture in self)

    def wanted(self) -> Wanted | None:
        """The smallest selection that covers all captures, None without any. Captures that end show no new ranges."""
        if not self:
            return None
        scopes, extras, sources, profilers, shown = (
            0,
            Extra.NONE,
            frozenset[EventSource](),
            False,
            None,
        )
        for capture in self:
            asked = capture.selected
            scopes, extras, sources = (
                scopes | asked.scopes,
                extras | asked.extras,
                sources | asked.sources,
            )
            profilers = profilers or asked.profiler is not None
            shown = (
                capture.shown if capture.shown is not None and capture not in self.ending else shown
            )
        calls = together(
            [
                each.selected.calls
                for each in self
                if EventSource.PYTHON_CALL in each.selected.sources
            ]
        )
        return Wanted(scopes, extras, sources, profilers, shown, calls)

    @property
    def sampled_alone(self) -> bool:
        """Whether no capture has a use for ranges in unsampled spans, which may change while they run."""
        return not any(capture.wants_unsampled for capture in self)

    def buffer_bytes(self) -> int:
        """The largest buffer per thread that a capture asks for."""
        return max((capture.buffer_bytes for capture in self), default=DEFAULT_BUFFER_BYTES)


class Draining:
    """The drains, one at a time, of any thread. Starting and stopping our thread is for one caller at a time.

    ``also`` is called after each drain of our thread, with the lock held.
    """

    def __init__(
        self, recorder: Recorder, captures: Captures, sources: Sources, also: Callable[[], object]
    ) -> None:
        self._recorder, self._captures, self._sources, self._also = (
            recorder,
            captures,
            sources,
            also,
        )
        self.lock = threading.RLock()
        self._holder: int | None = None
        """The thread that holds the lock."""
        self._thread: OwnThread | None = None
        """Our thread, from its start until it is told to end."""
        self._closing: list[tuple[Capture, float]] = []
        """Captures that ended while a sink was written to, each with its deadline for closing."""
        self._failed = False

    @contextmanager
    def held(self, timeout_s: float = -1) -> Iterator[bool]:
        """Keep other threads from draining meanwhile. Yields False if the lock couldn't be taken in time."""
        with self._hold(timeout_s) as held:
            yield held
        self.close_ended()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread is draining, as when a sink that is written to or flushed calls."""
        return self._holder == threading.get_ident()

    @contextmanager
    def _hold(self, timeout_s: float) -> Iterator[bool]:
        lock = self.lock  # kept by name, because a sink may fork, and the child has another one
        held = lock.acquire(timeout=timeout_s)
        outer = self._holder  # None, or this thread
        if held:
            self._holder = threading.get_ident()
        try:
            yield held
        finally:
            if held:
                self._holder = outer
                lock.release()

    def drain(
        self, *, close_open: bool = False, leaving: Capture | None = None, open_ranges: bool = False
    ) -> Batch | None:
        """Drain once, and deliver. None if no capture runs, or the drain failed.

        ``close_open`` seals ranges that are open as partial ones; ``leaving`` ends with this batch; ``open_ranges`` asks for
        copies of those that are open, whether the captures need them or not.
        """
        with self.held():
            if not self._captures:
                return None
            try:
                self._sources.look(last=close_open)
                look = self._captures.is_look_due()
                wanted = look or open_ranges or self._captures.need_views
                batch = self._recorder.drain(
                    close_open=close_open, open_ranges=wanted and not close_open
                )
                if batch.clock_jump_ns:
                    self._report_clock_jump(batch.clock_jump_ns / 1e9)
                self._captures.deliver(batch, leaving, look)
                return batch
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                self._log_failed_drain()
                return None

    def close_later(self, capture: Capture, deadline: float) -> None:
        """Have a capture that ended while a sink was written to closed when no sink is."""
        self._closing.append((capture, deadline))
        self.close_ended()

    def close_ended(self) -> None:
        """Close the captures that were to be closed later, unless a sink is still written to.

        Who writes calls this afterwards: a file that is closed under its writer may be another file by its next write.
        """
        if self._closing:
            with self._hold(0.0) as held:
                ready = [entry for entry in self._closing if held and not entry[0].is_delivering]
                for entry in ready:
                    self._closing.remove(entry)
                    capture, deadline = entry
                    capture.close(seconds_to(deadline))

    def start_thread(self) -> None:
        """Start the thread that drains, unless one does. If none can be started, that is logged."""
        if self._thread is not None:
            return
        self._thread = thread = OwnThread(self._run, "otel-recfn drain")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here
            self._thread = None
            log.warning(
                "no thread drains what is recorded (%s): it is delivered by flush() and at the end",
                error,
            )

    def stop_thread(self) -> OwnThread | None:
        """Tell the thread to end after its current drain, and return it."""
        thread, self._thread = self._thread, None
        self._recorder.wake()
        return thread

    def after_fork_in_child(self) -> None:
        """Start anew in a forked child, where no other thread drains."""
        self.lock, self._holder, self._thread, self._closing = threading.RLock(), None, None, []

    def _run(self) -> None:
        """Drain in the thread until it is told to end."""
        own, pause = threading.current_thread(), DRAIN_SECONDS
        with suppress_instrumentation():
            while self._thread is own:
                try:
                    self._recorder.wait(pause)
                    if self._thread is own:
                        with self.lock, at_work():  # a fork takes them in this order
                            batch = self.drain()
                            self._also()
                        pause = (
                            BUSY_DRAIN_SECONDS
                            if batch is not None and len(batch) > BUSY_ROWS
                            else DRAIN_SECONDS
                        )
                except Exception:  # where memory runs out, say
                    self._log_failed_drain()

    def _report_clock_jump(self, seconds: float) -> None:
        """Report a jump of the wall clock in the log, and as a mark among the ranges."""
        log.warning(
            "the wall clock jumped by %+.3f s (it was set, or the machine slept); durations are right and new ranges have the "
            "new time, but ranges that are open now keep to the clock that they began with",
            seconds,
        )
        _native.mark(f"wall clock jumped by {seconds:+.3f} s")

    def _log_failed_drain(self) -> None:
        """Log that a drain failed, once: where memory is short, many in a row may fail."""
        if not self._failed:
            self._failed = True
            with suppress(Exception):
                log.exception(
                    "draining failed; what was lost by that is counted, and the next drain goes on"
                )
