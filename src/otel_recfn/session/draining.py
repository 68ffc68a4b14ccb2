"""Draining: hands what was recorded to the captures that run.

    recorder.drain() ──► batch ──► Captures.deliver

One lock is held over every drain and its delivery. A thread drains every 100 to 250 ms, and when
the recorder asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn import _native
from otel_recfn.model.batch import Batch
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.capture import Capture
from otel_recfn.session.captures import Captures
from otel_recfn.session.deadlines import seconds_to
from otel_recfn.session.sources import Sources
from otel_recfn.sinks.protocol import NO_MEMORY
from otel_recfn.support.forks import OwnThread, at_work
from otel_recfn.support.interruptions import ignoring_errors, raised_by_signal_handler
from otel_recfn.support.locks import acquired
from otel_recfn.support.logs import log
from otel_recfn.support.span_log import span_log

DRAIN_SECONDS = 0.1
BUSY_DRAIN_SECONDS = 0.25
BUSY_ROWS = 10_000
"""The rows of a drain after which the next one comes later: a batch takes the GIL some ten times,
however many rows it has.

With 50,000 rows in a drain a training step took longer than with 170,000. The recorder wakes the
drain before a thread's buffer is full.
"""


class Draining:
    """The drains, one at a time, of any thread.

    Starting and stopping our thread is for one caller at a time.

    ``also`` is called after each drain of our thread, with the lock held.
    """

    def __init__(
        self, recorder: Recorder, captures: Captures, sources: Sources, also: Callable[[], object]
    ) -> None:
        self._recorder = recorder
        self._captures = captures
        self._sources = sources
        self._also = also
        self.lock = threading.RLock()
        self._owner: int | None = None
        """The thread that holds the lock."""
        self._thread: OwnThread | None = None
        """Our thread, from its start until it is asked to end."""
        self._closing: list[tuple[Capture, float]] = []
        """Captures that ended while a sink was written to, each with its deadline for closing."""
        self._failed = False

    @contextmanager
    def locked(self, timeout_s: float = -1) -> Iterator[bool]:
        """Keep other threads from draining meanwhile.

        Yields False if the lock couldn't be taken in time.
        """
        with self._acquire(timeout_s) as locked:
            yield locked
        self.close_ended()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread is draining, as when a sink that is written to or flushed
        calls.
        """
        return self._owner == threading.get_ident()

    @contextmanager
    def _acquire(self, timeout_s: float) -> Iterator[bool]:
        # A sink may fork, and the child has another lock: the one that is released is this one.
        with acquired(self.lock, timeout_s) as locked:
            outer = self._owner  # None, or this thread
            try:
                if locked:
                    self._owner = threading.get_ident()
                yield locked
            finally:
                if locked:
                    self._owner = outer

    def drain(
        self,
        *,
        close_open: bool = False,
        leaving: Capture | None = None,
        open_ranges: bool = False,
        end_steps: bool = False,
    ) -> Batch | None:
        """Drain once, and deliver. None if no capture runs, or the drain failed.

        ``close_open`` seals ranges that are open as partial ones; ``leaving`` ends with this batch;
        ``open_ranges`` asks for copies of those that are open, whether the captures need them or
        not; ``end_steps`` ends training steps in which nothing is open.
        """
        with self.locked():
            if not self._captures:
                return None
            try:
                self._sources.check(last=close_open)
                reports_open = self._captures.is_check_due()
                wanted = reports_open or open_ranges or self._captures.need_open_ranges
                copies = wanted and not close_open
                batch = self._recorder.drain(
                    close_open=close_open, open_ranges=copies, end_steps=end_steps
                )
                self._captures.deliver(_with_spans(batch), leaving, reports_open)
                if batch.clock_jump_ns:
                    self._report_clock_jump(batch.clock_jump_ns / 1e9)
                return batch
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                self._log_failed_drain()
                return None

    def discard_unread(self) -> None:
        """Count what was recorded and not drained as lost, after the last drain failed."""
        try:
            self._recorder.discard_unread()
        except MemoryError:
            self._log_failed_drain()

    def close_later(self, capture: Capture, deadline: float) -> None:
        """Close a capture that ended while a sink was written to, as soon as no sink is."""
        self._closing.append((capture, deadline))
        self.close_ended()

    def close_ended(self) -> None:
        """Close the captures that were to be closed later, unless a sink is still written to.

        Who writes calls this afterwards: a file that is closed under its writer may be another file
        by its next write.
        """
        if self._closing:
            with self._acquire(0.0) as locked:
                ready = [entry for entry in self._closing if locked and not entry[0].is_delivering]
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
        self.lock = threading.RLock()
        self._owner = None
        self._thread = None
        self._closing = []

    def _run(self) -> None:
        """Drain in the thread until it is told to end."""
        own = threading.current_thread()
        pause = DRAIN_SECONDS
        with suppress_instrumentation():
            while self._thread is own:
                try:
                    self._recorder.wait(pause)
                    if self._thread is own:
                        with self.lock, at_work():  # a fork takes them in this order
                            batch = self.drain()
                            self._also()
                        is_busy = batch is not None and len(batch) > BUSY_ROWS
                        pause = BUSY_DRAIN_SECONDS if is_busy else DRAIN_SECONDS
                except BaseException:  # where memory runs out, say
                    self._log_failed_drain()

    def _report_clock_jump(self, seconds: float) -> None:
        """Report a jump of the wall clock in the log, and as a mark among the ranges."""
        log.warning(
            "the wall clock jumped by %+.3f s (it was set, or the machine slept); durations are"
            " right and new ranges have the new time, but ranges that are open now keep to the"
            " clock that they began with",
            seconds,
        )
        _native.mark(f"wall clock jumped by {seconds:+.3f} s")

    def _log_failed_drain(self) -> None:
        """Log that a drain failed, once: where memory is short, many in a row may fail."""
        if not self._failed:
            self._failed = True
            with ignoring_errors():  # there may be no memory for it
                log.exception(
                    "draining failed; what was lost by that is counted, and the next drain goes on"
                )


def _with_spans(batch: Batch) -> Batch:
    """A batch that was drained just now with the program's spans of that time; without them if
    there is no memory for it.
    """
    with suppress(*NO_MEMORY):
        spans = span_log.collect()
        return replace(batch, spans=spans) if spans else batch
    return batch
