"""The session: wires sources and recorder to captures, and owns the drain thread, fork and exit.

    first capture   sources on ► recorder on ► drain thread ► sources that need torch on (when it is imported)
    drain           every 100 ms (20 ms while much is recorded): recorder.drain() ► each capture's view of the batch ► its sinks
    last capture    recorder off ► last drain, open ranges sealed as partial ► sources off ► sinks closed

The recorder records the union of what captures ask for. As long as only one capture has run, what was recorded is its view;
``_mixed`` says that others have joined it, and views are made (``batches/selection.py``).

``_draining`` is held over every drain and its delivery, and around fork, so that a child never inherits a half-written sink.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.pytorch.late_import import when_imported

# Now, and not by the first drain: a signal handler that interrupts that one, and drains, would find them half imported.
from otel_recfn.recording import native_columns  # noqa: F401
from otel_recfn.recording.protocol import Recorder, RecorderCounters
from otel_recfn.recording.python import batch as python_batch  # noqa: F401
from otel_recfn.recording.python import pairing as python_pairing  # noqa: F401
from otel_recfn.session.capture import Capture
from otel_recfn.session.exits import finish_in_multiprocessing_child
from otel_recfn.session.sources import Sources, sources_of_process, wanted_by
from otel_recfn.sources.protocol import Source
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.own_thread import OwnThread, at_work

log = logging.getLogger("otel_recfn")

DRAIN_SECONDS = 0.1
BUSY_DRAIN_SECONDS = 0.02
BUSY_ROWS = 10_000
EXIT_SECONDS = 5.0
LOSSES = (
    "recorder.dropped",
    "recorder.lost_ends",
    "recorder.lost_in_drain",
    "recorder.shortened",
    ".queue_dropped",
    ".abandoned",
    ".spans_failed",
    "chrome_trace.failed",
    ".missed",
)
"""Endings of the counters that say what was lost."""


class Session:
    """Any number of captures at once. Every method may be called from any thread; none but ``start`` raises.

    Args:
        recorder: the process's recorder.
        sources: what tells it of the program, beside ``record_function``; None for all that there are.
    """

    def __init__(self, recorder: Recorder, sources: Sequence[Source] | None = None) -> None:
        self._recorder = recorder
        self._sources = Sources(sources_of_process(recorder) if sources is None else sources)
        self._captures: list[Capture] = []
        self._starting: dict[Capture, int] = {}
        self._mixed = False
        self._ending: set[Capture] = set()
        self._given_up: list[Capture] = []
        self._lost_before: dict[Capture, dict[str, int]] = {}
        self._waiting_for_imports: dict[Capture, list[Callable[[], None]]] = {}
        self._switching = threading.RLock()
        self._draining = threading.RLock()
        self._wake = threading.Event()
        self._thread: OwnThread | None = None
        self._provider: object = None
        self._drain_failed = False
        self._held_for_fork: dict[int, list[threading.RLock]] = {}
        around_forks(
            Order.SESSION, before=self.before_fork, in_parent=self.after_fork_in_parent, in_child=self.after_fork_in_child
        )

    # --- captures

    def start(self, capture: Capture) -> None:
        """Record for ``capture``, beside the captures that are running, from now on."""
        self._starting[capture] = threading.get_ident()
        try:
            self._start(capture)
        finally:
            del self._starting[capture]

    def _start(self, capture: Capture) -> None:
        # Sources are prepared outside the lock: nobody who forks meanwhile should wait while one of them is compiled.
        self._sources.prepare(None, capture.selected.sources)
        with self._switching:
            self._lost_before[capture] = self._losses(capture)
            if self._captures:
                self._join(capture)
            else:
                self._begin(capture)
        waiting = [
            when_imported(module, partial(self._enable_those_that_need, module, capture), "what needs it is not recorded")
            for module in self._sources.modules_needed(capture.selected.sources)
        ]
        with self._switching:
            if capture in self._captures:
                self._waiting_for_imports[capture] = waiting
                return
        for call_off in waiting:  # it was stopped meanwhile
            call_off()

    def _begin(self, capture: Capture) -> None:
        self._captures, self._mixed = [capture], not capture.selected.is_all_that_is_recorded
        self._enable_sources()
        self._record_union()
        self._start_thread()
        self._exit_before_the_provider()

    def _join(self, capture: Capture) -> None:
        with self._draining:
            batch = self._drain(before_join=True)
            while batch is not None and not batch.complete:
                batch = self._drain(before_join=True)
            if batch is not None:
                self._begin_views(capture, batch)
            self._mixed = True
            self._captures.append(capture)
            self._record_union()
            self._enable_sources()
        self._close_given_up()

    def _begin_views(self, capture: Capture, batch: Batch) -> None:
        for other in self._captures if not self._mixed else ():
            other.selection.go_on_after(batch)
        capture.selection.begin_after(batch)

    def stop(self, capture: Capture, timeout_s: float) -> None:
        """End a capture: what was recorded goes to its sinks, within ``timeout_s`` seconds. Nothing if it isn't running."""
        if capture in self._ending:  # who ends it may be waiting for our thread, which one of its sinks called
            return
        deadline = time.monotonic() + timeout_s
        with self._switching:
            if capture not in self._captures:
                return
            self._ending.add(capture)
            for call_off in self._waiting_for_imports.pop(capture, ()):
                call_off()
            if capture.shown is not None:
                self._enable_sources()
            delivered = self._end(deadline) if len(self._captures) == 1 else self._leave(capture, deadline)
            self._ending.discard(capture)
        if delivered:
            capture.close(_seconds_to(deadline))
        else:
            log.warning("a sink has been busy for over %s s; what was recorded last is given up", timeout_s)
            self._given_up.append(capture)
            self._close_given_up()
        self._tell_losses(capture)

    def _end(self, deadline: float) -> bool:
        self._recorder.stop()
        self._stop_thread(_seconds_to(deadline))
        delivered = self._draining.acquire(timeout=_seconds_to(deadline))
        try:
            if delivered:
                self._drain_all(close_open=True)
            self._captures = []
        finally:
            if delivered:
                self._draining.release()
        self._close_given_up()
        self._sources.disable()
        atexit.unregister(self.at_exit)
        self._provider = None
        return delivered

    def _leave(self, capture: Capture, deadline: float) -> bool:
        if not self._draining.acquire(timeout=_seconds_to(deadline)):
            self._captures.remove(capture)
            return False
        try:
            self._drain(leaving=capture)
            self._captures.remove(capture)
            self._record_union()
            self._enable_sources()
        finally:
            self._draining.release()
        self._close_given_up()
        return True

    def _close_given_up(self) -> None:
        """Close captures that ended while their sinks were written to, unless they still are.

        Who writes calls this afterwards: a file that is closed under its writer may be another file by its next write.
        """
        if self._given_up and self._draining.acquire(blocking=False):
            try:
                while self._given_up:
                    self._given_up.pop().close(0.0)
            finally:
                self._draining.release()

    def flush(self, capture: Capture, timeout_s: float) -> bool:
        """Drain, and flush a capture's sinks; False when ``timeout_s`` seconds were not enough, or it isn't running.

        False at once where one of its sinks calls: it can't wait for itself.
        """
        try:
            return self._flush(capture, time.monotonic() + timeout_s)
        except OUT_OF_MEMORY:
            return False

    def _flush(self, capture: Capture, deadline: float) -> bool:
        if not self._draining.acquire(timeout=_seconds_to(deadline)):
            return False
        try:
            flushed = self._drain_all() and capture in self._captures and capture.flush(_seconds_to(deadline))
        finally:
            self._draining.release()
            self._close_given_up()
        return flushed and capture.flush_background(_seconds_to(deadline))  # meanwhile what is recorded is drained

    def counters(self, capture: Capture) -> dict[str, int]:
        """Counts of the recorder and of sources (of the process), and of a capture, running or not."""
        names = RecorderCounters._fields
        counts = {f"recorder.{name}": value for name, value in zip(names, self._recorder.counters(), strict=True)}
        return counts | self._sources.counters() | capture.counters()

    def _losses(self, capture: Capture) -> dict[str, int]:
        return {name: count for name, count in self.counters(capture).items() if name.endswith(LOSSES)}

    def _tell_losses(self, capture: Capture) -> None:
        before = self._lost_before.pop(capture, {})
        lost = {name: count - before.get(name, 0) for name, count in self._losses(capture).items()}
        told = ", ".join(f"{name}={count}" for name, count in lost.items() if count > 0)
        if told:
            log.warning("not everything that ran was kept: %s", told)

    # --- what is recorded

    def _record_union(self) -> None:
        wanted = wanted_by(self._captures)
        buffer_bytes = max(capture.buffer_bytes for capture in self._captures)
        self._recorder.start(wanted.scopes, buffer_bytes, wanted.extras)

    def _enable_sources(self) -> None:
        self._sources.enable(wanted_by(self._captures, self._ending))

    def _enable_those_that_need(self, module: str, capture: Capture) -> None:
        """``module`` is imported now."""
        self._sources.prepare(module, capture.selected.sources)
        with self._switching:
            if capture in self._captures:
                self._enable_sources()

    # --- draining

    def _start_thread(self) -> None:
        self._wake = threading.Event()
        self._thread = thread = OwnThread(partial(self._run, self._wake), "otel-recfn drain")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here, or a signal handler forked, whose child has started another
            log.warning("no thread drains what is recorded (%s): it is delivered by flush() and at the end", error)

    def _stop_thread(self, timeout_s: float) -> None:
        thread, self._thread = self._thread, None
        self._wake.set()
        self._recorder.wake()
        if thread is not None:
            thread.wait_for_end(timeout_s)

    def _run(self, wake: threading.Event) -> None:
        pause = DRAIN_SECONDS
        with suppress_instrumentation():
            while not wake.is_set() and wake is self._wake:
                try:
                    self._recorder.wait(pause)
                    if wake.is_set():
                        return
                    with self._draining, at_work():
                        batch = self._drain()
                        self._exit_before_the_provider()
                    pause = BUSY_DRAIN_SECONDS if batch is not None and len(batch) > BUSY_ROWS else DRAIN_SECONDS
                except OUT_OF_MEMORY:  # of the loop's own; a failed drain is told and tried again
                    time.sleep(DRAIN_SECONDS)

    def _drain_all(self, *, close_open: bool = False) -> bool:
        """Drain until nothing waits; where memory is short that may take several batches. False where a drain failed."""
        batch = self._drain(close_open=close_open)
        while batch is not None and not batch.complete:
            batch = self._drain(close_open=close_open)
        return batch is not None

    def _drain(self, *, close_open: bool = False, leaving: Capture | None = None, before_join: bool = False) -> Batch | None:
        try:
            with self._draining:
                return self._deliver(close_open, leaving, open_ranges=(self._mixed or before_join) and not close_open)
        finally:
            self._close_given_up()

    def _deliver(self, close_open: bool, leaving: Capture | None, open_ranges: bool) -> Batch | None:
        if not self._captures:
            return None
        try:
            batch = self._recorder.drain(close_open=close_open, open_ranges=open_ranges)
        except Exception:
            self._tell_failed_drain()
            return None
        if batch.clock_jump_ns:
            self._tell_clock_jump(batch.clock_jump_ns / 1e9)
        for capture in self._captures:
            view = capture.selection.view(batch, last=capture is leaving) if self._mixed else _without_copies(batch)
            if len(view) or view.opened:
                capture.write(view)
        return batch

    def _tell_clock_jump(self, seconds: float) -> None:
        """In the log, and as a mark among the ranges."""
        log.warning(
            "the wall clock jumped by %+.3f s (it was set, or the machine slept); durations are right and new ranges have the "
            "new time, but ranges that are open now keep to the clock that they began with",
            seconds,
        )
        self._recorder.mark(f"wall clock jumped by {seconds:+.3f} s")

    def _tell_failed_drain(self) -> None:
        """Once: where memory is short, many in a row may fail."""
        if not self._drain_failed:
            self._drain_failed = True
            log.exception("draining failed; what was recorded waits for the next drain, and what doesn't fit is counted")

    # --- exit and fork

    def _exit_before_the_provider(self) -> None:
        """Exit handlers run last in, first out: ours has to be younger than the one that shuts the provider down."""
        provider = trace.get_tracer_provider()
        if provider is self._provider:
            return
        self._provider = provider
        atexit.unregister(self.at_exit)
        atexit.register(self.at_exit)

    def at_exit(self) -> None:
        """End every capture, within the seconds that an exit may take."""
        deadline = time.monotonic() + EXIT_SECONDS
        for capture in list(self._captures):
            self.stop(capture, _seconds_to(deadline))

    def before_fork(self, deadline: float) -> None:
        """Wait until no capture is started or stopped and no drain is under way, up to a limit: a sink may hang."""
        held = self._held_for_fork[threading.get_ident()] = []
        locks = (self._switching, self._draining)
        held.extend(lock for lock in locks if lock.acquire(timeout=_seconds_to(deadline)))

    def after_fork_in_parent(self) -> None:
        """Go on."""
        for lock in reversed(self._held_for_fork.pop(threading.get_ident(), ())):
            lock.release()
        self._close_given_up()

    def after_fork_in_child(self) -> None:
        """Go on with an empty recorder and sinks of the child's own."""
        self._switching, self._draining = threading.RLock(), threading.RLock()
        self._thread, self._wake, self._held_for_fork = None, threading.Event(), {}
        self._given_up, self._ending, self._lost_before = [], set(), {}
        for capture in self._captures:
            capture.after_fork_in_child()
        self._drop_half_started()
        if not self._captures:
            return
        self._start_thread()
        finish_in_multiprocessing_child(self)

    def _drop_half_started(self) -> None:
        """In a child: captures that other threads of the parent were starting, so that nobody here knows that they run."""
        own, starting = threading.get_ident(), self._starting
        self._starting = {capture: thread for capture, thread in starting.items() if thread == own}
        for capture in starting.keys() - self._starting.keys():
            self.stop(capture, 0.0)


def _without_copies(batch: Batch) -> Batch:
    return batch if batch.closed == len(batch) else batch.take(slice(batch.closed), opened=batch.opened)


def _seconds_to(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
