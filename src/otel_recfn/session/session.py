"""The session starts and stops captures. With the first one it starts sources, the recorder, the
drain thread and the handlers of forks and the exit, and with the last one it stops them.

    first capture   sources on ► recorder on ► drain thread ► sources that need torch on, when it is
                    imported later
    drain           every 100 ms (250 if much is recorded): recorder.drain() ► each capture's view
                    of the batch ► its sinks
    last capture    recorder off ► last drain, open ranges sealed as partial ► sources off
                    ► sinks closed

There are two locks. Each drain with its delivery holds the lock of ``Draining``. Each start and
stop holds that lock and ``_switching``. They are always acquired in this order, because a sink that
is written to may start and stop captures. If a sink hangs, a capture is stopped with ``_switching``
alone. A fork acquires both, so that a child never inherits a half-written sink.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from otel_recfn import _native
from otel_recfn.errors import CallRefused
from otel_recfn.model.counters import losses
from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import call_at_import, is_imported
from otel_recfn.pytorch.thread_ids import follow_torch
from otel_recfn.recording.recorder import Recorder, recorder
from otel_recfn.session.capture import Capture
from otel_recfn.session.captures import Captures
from otel_recfn.session.deadlines import seconds_to
from otel_recfn.session.draining import Draining
from otel_recfn.session.exit_handler import ExitHandler
from otel_recfn.session.losses import log_losses
from otel_recfn.session.sources import Sources, process_sources
from otel_recfn.session.span_listening import SpanListening
from otel_recfn.session.unused_ranges import UnusedRanges
from otel_recfn.sources.protocol import Source
from otel_recfn.sources.steps import end_open_steps
from otel_recfn.support.exceptions import add_control_flow
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks, follow_fork
from otel_recfn.support.locks import acquire_into
from otel_recfn.support.logs import log
from otel_recfn.support.seen_spans import seen_spans
from otel_recfn.support.signal_handlers import calling, log_refused
from otel_recfn.support.span_log import span_log

EXIT_SECONDS = 1.0
"""The seconds that an exit may take in addition to ``exit_timeout_s``, which is for the backend."""
DELIVERY_SHARE = 0.5
"""The share of ``exit_timeout_s`` that sinks may take for the rows that were recorded last."""
START_SECONDS = 5.0
"""The seconds that the stop of a capture may take that could not be started."""
SWITCH_SECONDS = 1.0
"""The seconds that a start waits while a sink is written to; then it tries again."""
MIN_SECONDS = 0.05
"""The minimum number of seconds that a stop waits for a drain, also when its time is over."""


class Session:
    """Starts, flushes and stops the captures of the process. Any thread may call it.

    Only ``start`` and ``stop`` raise.
    """

    def __init__(self, recorder: Recorder, sources: Sequence[Source] | None = None) -> None:
        self._recorder = recorder
        self._captures = Captures()
        self._sources = Sources(
            process_sources(recorder) if sources is None else sources, self._captures.wanted
        )
        self._draining = Draining(
            recorder, self._captures, self._sources, also=self._follow_providers
        )
        self.deliver_by = math.inf
        """The ``time.monotonic()`` until which sinks take ranges as the process ends; infinite
        while it goes on.
        """
        self._sampled_alone = False
        """Whether the recorder leaves out ranges in unsampled spans."""
        self._exit = ExitHandler(self.at_exit)
        self._span_listening = SpanListening()
        self._unused = UnusedRanges()
        self._switching = threading.RLock()
        self._fork_locks: dict[int, list[threading.RLock]] = {}
        """The locks that threads hold while they fork, by thread."""
        self._waiting_for_imports: dict[Capture, list[Callable[[], None]]] = {}
        around_forks(
            Order.SESSION,
            before=self.before_fork,
            in_parent=self.after_fork_in_parent,
            in_child=self.after_fork_in_child,
        )

    def start(self, capture: Capture) -> None:
        """Record for ``capture`` from now on, in addition to the captures that are running.

        If this raises, the sinks of the capture are closed.

        Raises:
            CallRefused: a signal handler called it during a start, stop or flush of its thread.
        """
        try:
            with calling("start"):
                try:
                    self._start(capture)
                except BaseException:
                    self._stop(capture, START_SECONDS)
                    raise
        except CallRefused:
            capture.has_ended = True
            capture.close(0.0)
            raise

    def _start(self, capture: Capture) -> None:
        follow_torch()
        self._span_listening.prepare()
        # Sources are prepared outside the lock: a fork must not wait while one of them is compiled.
        # They are prepared before any is enabled: the tracer of Python calls would trace the build
        # of the observer.
        self._sources.prepare(None, capture.selected.sources)
        needed = self._sources.modules_needed(capture.selected.sources)
        there = list(filter(is_imported, needed))
        for module in there:
            self._sources.prepare(module, capture.selected.sources)
        while not self._begin_or_join(capture):
            pass
        waiting: list[Callable[[], None]] = []
        self._waiting_for_imports[capture] = waiting
        for module in [each for each in needed if each not in there]:
            enable = partial(self._enable_those_that_need, module, capture)
            waiting.append(call_at_import(module, enable, "what needs it is not recorded"))
        if capture not in self._captures:  # it was stopped meanwhile
            self._cancel_imports(capture)

    @contextmanager
    def _changing(self, timeout_s: float) -> Iterator[bool]:
        """Prevent other threads from changing the captures.

        Yields False if a sink is busy too long: then another thread may drain meanwhile.
        """
        with self._draining.locked(timeout_s) as locked, self._switching:
            yield locked

    def _begin_or_join(self, capture: Capture) -> bool:
        """Begin the capture, or add it to others; False if a sink is too busy."""
        with self._changing(SWITCH_SECONDS) as locked:
            # It may have been stopped before it began.
            if capture.has_ended or capture in self._captures.ending:
                return True
            capture.recorder_at_begin = self._recorder.counters()
            if self._captures.begin(capture):
                self._sources.follow()
                self._update_recorder(begins=True)
                self._draining.start_thread()
                self._exit.follow_provider()
                self._exit.finish_in_multiprocessing_child()
            elif locked:
                since_serial = _native.task_serial()
                self._captures.join(capture, self._draining.drain(open_ranges=True), since_serial)
                self._update_recorder()
                self._sources.follow()
            else:
                return False
        return True

    def _update_recorder(self, *, begins: bool = False) -> None:
        """Let the recorder record what the captures want now, but for those that are ending.

        ``begins``: the only capture begins, so nothing that was recorded before is for it.
        """
        if not (begins or self._captures.all_end or self._process_ends or _native.recording()):
            # Captures that are ending get the rest of the earlier recording; its open ranges would
            # be dropped otherwise.
            with self._draining.locked(0.0) as locked:
                if locked:
                    self._draining.drain(close_open=True)
        wanted = None if self._captures.all_end or self._process_ends else self._captures.wanted()
        if wanted is None:
            self._recorder.stop()
            if not self._captures:
                self._span_listening.follow(())
            return
        for capture in self._captures:
            if capture.names_spans:
                capture.retained_spans = seen_spans.retain()
        self._span_listening.follow(self._captures)
        self._sampled_alone = self._captures.sampled_alone
        self._recorder.start(
            wanted.scopes, self._captures.buffer_bytes(), wanted.extras, self._sampled_alone
        )

    def _enable_those_that_need(self, module: str, capture: Capture) -> None:
        """Called when the program has imported ``module``."""
        self._sources.prepare(module, capture.selected.sources)
        with self._changing(SWITCH_SECONDS):
            if capture in self._captures:
                self._sources.follow()

    def _follow_providers(self) -> None:
        """Follow tracer providers that were set since the last drain: be called before them at the
        exit, and update whether ranges in unsampled spans are recorded.
        """
        self._exit.follow_provider()
        with self._switching:
            if self._captures and self._captures.sampled_alone != self._sampled_alone:
                self._update_recorder()
            self._span_listening.follow(self._captures)
        for capture in self._captures:
            self._unused.check(capture)

    def stop(self, capture: Capture, timeout_s: float) -> None:
        """End a capture within ``timeout_s`` seconds, with what was recorded in its sinks.

        If it has ended, this does nothing.

        Raises:
            CallRefused: a signal handler called it during a start, stop or flush of its thread. The
                capture continues.
        """
        if not capture.has_ended:
            with calling("stop"):
                self._stop(capture, timeout_s)

    def _stop(self, capture: Capture, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        ends_here = False
        try:
            with self._changing(timeout_s):
                if capture.has_ended or capture in self._captures.ending:
                    # Whoever ends it may wait for our thread, from which one of its sinks called.
                    return
                ends_here = True
                self._captures.ending.add(capture)
            self._end(capture, deadline)
        except BaseException:  # the capture ends, and what was recorded last is dropped
            if ends_here:
                capture.has_ended = True
                self._captures.ending.discard(capture)
                with self._changing(0.0):
                    self._leave(capture)
                self._draining.close_later(capture, 0.0)
            raise
        finally:
            if ends_here:
                self._captures.ending.discard(capture)

    def _end(self, capture: Capture, deadline: float) -> None:
        self._stop_recording(capture, deadline)
        was_delivered = self._drain_last(capture, deadline)
        self._unused.check(capture, ends=True)
        if not was_delivered:
            log.warning(
                "a sink has been busy all the time that the end may take; what was recorded last is"
                " dropped"
            )
        if was_delivered and not capture.is_delivering:
            capture.close(seconds_to(deadline))
        else:
            self._draining.close_later(capture, deadline)
        capture.recorder_at_end = self._recorder.counters()
        log_losses(self.lost(capture))
        capture.has_ended = True

    def _stop_recording(self, capture: Capture, deadline: float) -> None:
        """Record no longer for the capture, and stop the recorder if it was the last one."""
        thread = None
        showed_steps = False
        with self._changing(seconds_to(deadline)):
            self._cancel_imports(capture)
            if capture in self._captures:
                # Ranges that begin from now on may not become spans, so the program must not see
                # them as current spans.
                if capture.exposed is not None:
                    self._sources.follow()
                    showed_steps = True
                self._update_recorder()
                if self._captures.all_end:
                    thread = self._draining.stop_thread()
        if showed_steps:  # without the lock, as it calls the program's span processors
            end_open_steps()
        # A sink that is written to may call this. Then this thread holds the lock, for which the
        # drain thread may wait, so it must not be waited for.
        if thread is not None and not self._draining.is_held_here:
            thread.wait_for_end(seconds_to(deadline))

    def _drain_last(self, capture: Capture, deadline: float) -> bool:
        """Drain for a capture for the last time, and remove it.

        False if a sink is busy too long: then what was recorded last is dropped.
        """
        was_delivered = True
        with self._changing(max(MIN_SECONDS, seconds_to(deadline))) as may_drain:
            if capture in self._captures:
                was_delivered = may_drain
                is_last = self._captures.all_end
                last = None
                if may_drain:
                    leaving = None if is_last else capture
                    last = self._draining.drain(close_open=is_last, leaving=leaving)
                if is_last and last is None:
                    self._draining.discard_unread()
            self._leave(capture)
        return was_delivered

    def _cancel_imports(self, capture: Capture) -> None:
        for cancel in self._waiting_for_imports.pop(capture, ()):
            cancel()

    def _leave(self, capture: Capture) -> None:
        """Remove a capture. The others continue, also those that a sink has started meanwhile."""
        self._captures.leave(capture)
        self._update_recorder()
        self._sources.follow()
        if not self._captures:
            self._draining.stop_thread()  # it runs still if an exception interrupted the stop
            self._exit.unregister()
        elif not (self._captures.all_end or self._process_ends):
            self._draining.start_thread()

    def flush(self, capture: Capture, timeout_s: float, *, spans_alone: bool = False) -> bool:
        """Drain, and flush a capture's sinks.

        Returns False if the capture isn't running, or if ``timeout_s`` seconds or memory were not
        enough; at once if one of its sinks calls this, as it can't wait for itself; and with a
        warning if a signal handler called this during a start, stop or flush of its thread.

        Args:
            capture: the capture.
            timeout_s: the maximum number of seconds.
            spans_alone: only the sink of spans is flushed, as by ``Capture.flush``.
        """
        try:
            with calling("flush"):
                return self._flush(capture, time.monotonic() + timeout_s, spans_alone=spans_alone)
        except CallRefused as refused:
            log_refused(refused)
        except MemoryError:
            log.warning("not flushed: there was no memory")
        return False

    def _flush(self, capture: Capture, deadline: float, *, spans_alone: bool) -> bool:
        self._exit.follow_provider()
        with self._draining.locked(seconds_to(deadline)) as locked:
            last = self._draining.drain(end_steps=True) if locked else None
            if last is not None:
                self._follow_providers()
            has_all = last is not None and capture in self._captures and not capture.is_delivering
        # Without the lock, so that other threads can drain meanwhile.
        return has_all and capture.flush(seconds_to(deadline), spans_alone=spans_alone)

    def recorder_lost(self) -> int:
        """The number of ranges that the recorder has lost."""
        counts = self._recorder.counters()
        return counts.dropped + counts.lost_in_drain

    def counters(self, capture: Capture) -> dict[str, int]:
        """The counters of a capture, running or not."""
        return capture.counters(self._recorder.counters())

    def lost(self, capture: Capture) -> dict[str, int]:
        """The counters of a capture that count losses."""
        return losses(self.counters(capture))

    def at_exit(self) -> None:
        """End every capture within its ``exit_timeout_s`` and a second."""
        follow_fork()
        began = time.monotonic()
        captures = list(self._captures)
        longest_s = max([capture.exit_timeout_s for capture in captures], default=0.0)
        self.deliver_by = began + EXIT_SECONDS + DELIVERY_SHARE * longest_s
        # Daemon threads continue. To read what they begin from here on would take the time of what
        # was recorded before. So the recorder stops before anything is waited for.
        self._recorder.stop()
        for capture in captures:
            deadline = began + EXIT_SECONDS + capture.exit_timeout_s
            try:
                self.stop(capture, seconds_to(deadline))
            except Exception:  # if memory runs out, for instance; the other captures end
                log.exception("a capture could not be ended")
        self.deliver_by = math.inf

    @property
    def _process_ends(self) -> bool:
        return self.deliver_by < math.inf

    def before_fork(self, deadline: float) -> None:
        """Wait until no capture is started or stopped and no thread drains, but only until
        ``deadline``, as a sink may hang.
        """
        locked = self._fork_locks[threading.get_ident()] = []
        for lock in (self._draining.lock, self._switching):
            # Each lock is noted when it is acquired, so that an interrupted fork releases it.
            acquire_into(locked, lock, seconds_to(deadline))

    def after_fork_in_parent(self) -> None:
        """Go on in the parent after a fork."""
        for lock in reversed(self._fork_locks.pop(threading.get_ident(), ())):
            lock.release()
        self._draining.close_ended()

    def after_fork_in_child(self) -> None:
        """Go on in a forked child, with an empty recorder and sinks of the child's own."""
        ending = self._captures.ending
        self._switching = threading.RLock()
        self._captures.ending = set()
        self._fork_locks, self.deliver_by = {}, math.inf
        self._draining.after_fork_in_child()
        self._unused.after_fork_in_child()
        span_log.clear()  # the parent's spans end there
        for capture in self._captures:
            capture.after_fork_in_child()
        # Captures that don't run in the child have the parent's sinks, which only the parent may
        # close.
        for capture in ending:
            capture.has_ended = capture.has_ended or capture not in self._captures
        if self._captures:
            self._update_recorder()  # the child's sinks may want other ranges than the parent's
            self._recorder.call_when_recorded(self._start_draining)
            self._exit.finish_in_forked_child()

    def _start_draining(self) -> None:
        """Start draining in a child when it records something: a child that never does has no
        thread of ours.
        """
        with self._changing(0.0):
            if not self._captures.all_end:
                self._draining.start_thread()


_making = ForkSafeLock()
_session: Session | None = None


def process_session() -> Session:
    """The one session: there is one recorder in a process."""
    global _session
    with _making:
        if _session is None:
            stop = details.PYTHON["stopped_recomputation"]
            call_at_import(stop.location[0], _expect_stopped_recomputation, stop.lost)
            _session = Session(recorder)
        return _session


def _expect_stopped_recomputation() -> None:
    """Take the exception by which activation checkpointing stops a recomputation for no failure."""
    stop = details.find("stopped_recomputation")
    if stop is not None:
        add_control_flow(stop)
