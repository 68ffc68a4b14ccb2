"""The session: starts and stops captures, and with them all that records, delivers, and looks after forks and the exit.

    first capture   sources on ► recorder on ► drain thread ► sources that need torch on, where it is imported later
    drain           every 100 ms (250 where much is recorded): recorder.drain() ► each capture's view of the batch ► its sinks
    last capture    recorder off ► last drain, open ranges sealed as partial ► sources off ► sinks closed

The lock of ``Draining`` is held over every drain and its delivery, and with it ``_switching`` over every start and stop. They
are always taken in this order, because a sink that is written to may start and stop captures. Only where a sink hangs a capture
is stopped without the first one. A fork takes both, so that a child never inherits a half-written sink.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from otel_recfn import _native
from otel_recfn.errors import CallRefused
from otel_recfn.model.counters import losses
from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import is_imported, when_imported
from otel_recfn.recording.recorder import Recorder, recorder
from otel_recfn.session.capture import Capture, seconds_to
from otel_recfn.session.draining import Captures, Draining
from otel_recfn.session.lifetime import ExitHandler, UnusedRanges, log_losses
from otel_recfn.session.sources import Sources, sources_of_process
from otel_recfn.sources.protocol import Source
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks
from otel_recfn.support.seen_spans import seen_spans
from otel_recfn.support.signal_handlers import calling, log_refused
from otel_recfn.support.texts import add_control_flow

log = logging.getLogger("otel_recfn")

EXIT_SECONDS = 5.0
"""The seconds for all that an exit does. The capture says how many of them a backend may take."""
SWITCH_SECONDS = 1.0
"""The seconds that a start waits for a sink that is written to."""
LEAST_SECONDS = 0.05
"""The least seconds that an end waits for a thread that drains, also when its time is over."""


class Session:
    """The captures of the process, with their starts and stops, from any thread. Only ``start`` and ``stop`` raise."""

    def __init__(self, recorder: Recorder, sources: Sequence[Source] | None = None) -> None:
        self._recorder = recorder
        self._captures = Captures()
        self._sources = Sources(
            sources_of_process(recorder) if sources is None else sources, self._captures.wanted
        )
        self._draining = Draining(
            recorder, self._captures, self._sources, also=self._follow_providers
        )
        self.process_ends = False
        """Whether captures end because the process does."""
        self._sampled_alone = False
        """Whether the recorder was last told to leave out ranges in unsampled spans."""
        self._exit = ExitHandler(self.at_exit)
        self._unused = UnusedRanges()
        self._switching = threading.RLock()
        self._held: dict[int, list[threading.RLock]] = {}
        """The locks that forking threads hold."""
        self._waiting_for_imports: dict[Capture, list[Callable[[], None]]] = {}
        around_forks(
            Order.SESSION,
            before=self.before_fork,
            in_parent=self.after_fork_in_parent,
            in_child=self.after_fork_in_child,
        )

    def start(self, capture: Capture) -> None:
        """Record for ``capture``, beside the captures that are running, from now on.

        A CallRefused where a signal handler calls during a start, stop or flush of its thread. Whatever is raised, its sinks
        are closed then.
        """
        try:
            with calling("start"):
                try:
                    self._start(capture)
                except BaseException:
                    self._stop(capture, EXIT_SECONDS)
                    raise
        except CallRefused:
            capture.has_ended = True
            capture.close(0.0)
            raise

    def _start(self, capture: Capture) -> None:
        # Sources are prepared outside the lock: a fork must not wait while one of them is compiled.
        # They are prepared before any is enabled: the tracer of Python calls would trace the build of the observer.
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
            waiting.append(when_imported(module, enable, "what needs it is not recorded"))
        if capture not in self._captures:  # it was stopped meanwhile
            self._cancel_imports(capture)

    @contextmanager
    def _changing(self, timeout_s: float) -> Iterator[bool]:
        """Keep other threads from changing the captures. Yields False if a sink is busy too long: drains then go on."""
        with self._draining.held(timeout_s) as held, self._switching:
            yield held

    def _begin_or_join(self, capture: Capture) -> bool:
        """Begin the capture, or add it to others; False if a sink is too busy."""
        with self._changing(SWITCH_SECONDS) as held:
            if (
                capture.has_ended or capture in self._captures.ending
            ):  # it was stopped before it began
                return True
            capture.recorder_at_begin = self._recorder.counters()
            if self._captures.begin(capture):
                self._sources.follow()
                self._record(begins=True)
                self._draining.start_thread()
                self._exit.follow_provider()
                self._exit.finish_in_multiprocessing_child()
            elif held:
                since_serial = _native.task_serial()
                self._captures.join(capture, self._draining.drain(open_ranges=True), since_serial)
                self._record()
                self._sources.follow()
            else:
                return False
        return True

    def _record(self, *, begins: bool = False) -> None:
        """Set the recorder to what the captures that don't end want now.

        ``begins``: the only capture begins, and nothing that was recorded before is for it.
        """
        if not (begins or self._captures.all_end or _native.recording()):
            # Captures that are ending get the rest of the earlier recording; its open ranges would be dropped otherwise.
            with self._draining.held(0.0) as held:
                if held:
                    self._draining.drain(close_open=True)
        wanted = None if self._captures.all_end else self._captures.wanted()
        if wanted is None:
            self._recorder.stop()
            return
        seen_spans.keep_alive(any(each.names_spans for each in self._captures))
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
        """Register for the exit before providers that were set late, and learn whether they want unsampled ranges."""
        self._exit.follow_provider()
        with self._switching:
            if self._captures and self._captures.sampled_alone != self._sampled_alone:
                self._record()
        for capture in self._captures:
            self._unused.look(capture)

    def stop(self, capture: Capture, timeout_s: float) -> None:
        """End a capture: what was recorded goes to its sinks, within ``timeout_s`` seconds. Nothing if it has ended.

        A CallRefused where a signal handler calls during a start, stop or flush of its thread; then the capture goes on.
        """
        if not capture.has_ended:
            with calling("stop"):
                self._stop(capture, timeout_s)

    def _stop(self, capture: Capture, timeout_s: float) -> None:
        deadline, ends_here = time.monotonic() + timeout_s, False
        try:
            with self._changing(timeout_s):
                if capture.has_ended or capture in self._captures.ending:
                    return  # whoever ends it may wait for our thread, from which one of its sinks called
                ends_here = True
                self._captures.ending.add(capture)
            self._end(capture, deadline)
        except BaseException:  # it ends without what was recorded last
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
        thread = None
        with self._changing(seconds_to(deadline)):
            self._cancel_imports(capture)
            if capture in self._captures:
                if capture.shown is not None:  # what begins from now on may not become a span
                    self._sources.follow()
                self._record()
                thread = self._draining.stop_thread() if self._captures.all_end else None
        if (
            thread is not None and not self._draining.is_held_here
        ):  # it may be waiting for the thread that drains
            thread.wait_for_end(seconds_to(deadline))
        was_delivered = True
        with self._changing(max(LEAST_SECONDS, seconds_to(deadline))) as may_drain:
            if capture in self._captures:
                was_delivered, is_last = may_drain, self._captures.all_end
                if may_drain:
                    self._draining.drain(close_open=is_last, leaving=None if is_last else capture)
            self._leave(capture)
        self._unused.look(capture, ends=True)
        if not was_delivered:
            log.warning(
                "a sink has been busy all the time that the end may take; what was recorded last is dropped"
            )
        if was_delivered and not capture.is_delivering:
            capture.close(seconds_to(deadline))
        else:
            self._draining.close_later(capture, deadline)
        capture.recorder_at_end = self._recorder.counters()
        log_losses(self.lost(capture))
        capture.has_ended = True

    def _cancel_imports(self, capture: Capture) -> None:
        for cancel in self._waiting_for_imports.pop(capture, ()):
            cancel()

    def _leave(self, capture: Capture) -> None:
        """Go on without a capture, for the others, also those that a sink has started meanwhile."""
        self._captures.leave(capture)
        self._record()
        self._sources.follow()
        if not self._captures:
            self._draining.stop_thread()  # an end that was interrupted hasn't
            self._exit.unregister()
        elif not self._captures.all_end:
            self._draining.start_thread()

    def flush(self, capture: Capture, timeout_s: float) -> bool:
        """Drain, and flush a capture's sinks; False when ``timeout_s`` seconds or memory were not enough, or it isn't running.

        False at once where one of its sinks calls: it can't wait for itself. False, and a warning, where a signal handler
        calls during a start, stop or flush of its thread.
        """
        try:
            with calling("flush"):
                return self._flush(capture, time.monotonic() + timeout_s)
        except CallRefused as refused:
            log_refused(refused)
        except MemoryError:
            log.warning("not flushed: there was no memory")
        return False

    def _flush(self, capture: Capture, deadline: float) -> bool:
        self._exit.follow_provider()
        with self._draining.held(seconds_to(deadline)) as held:
            last = self._draining.drain() if held else None
            if last is not None:
                self._follow_providers()
            has_all = last is not None and capture in self._captures and not capture.is_delivering
        return has_all and capture.flush(seconds_to(deadline))  # other threads drain meanwhile

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
        """End every capture within ``EXIT_SECONDS``."""
        began, self.process_ends = time.monotonic(), True
        for capture in self._captures:
            deadline = began + max(EXIT_SECONDS, capture.exit_timeout_s)
            try:
                self.stop(capture, seconds_to(deadline))
            except Exception:  # where memory runs out, say; the others end all the same
                log.exception("a capture could not be ended")
        self.process_ends = False

    def before_fork(self, deadline: float) -> None:
        """Wait until no capture is started or stopped and no drain is under way; not after ``deadline``, as a sink may hang."""
        held = self._held[threading.get_ident()] = []
        for lock in (self._draining.lock, self._switching):
            if lock.acquire(timeout=seconds_to(deadline)):
                held.append(lock)  # noqa: PERF401 - one after the other, so that whoever is interrupted gives back what it took

    def after_fork_in_parent(self) -> None:
        """Go on in the parent after a fork."""
        for lock in reversed(self._held.pop(threading.get_ident(), ())):
            lock.release()
        self._draining.close_ended()

    def after_fork_in_child(self) -> None:
        """Go on in a forked child, with an empty recorder and sinks of the child's own."""
        ending, self._switching, self._captures.ending = (
            self._captures.ending,
            threading.RLock(),
            set(),
        )
        self._held, self.process_ends = {}, False
        self._draining.after_fork_in_child()
        self._unused.after_fork_in_child()
        for capture in self._captures:
            capture.after_fork_in_child()
        for capture in (
            ending
        ):  # captures that don't run here have the parent's sinks, which only the parent may close
            capture.has_ended = capture.has_ended or capture not in self._captures
        if self._captures:
            self._record()  # the child's sinks may want other ranges than the parent's
            self._recorder.call_when_recorded(self._start_draining)
            self._exit.finish_in_forked_child()

    def _start_draining(self) -> None:
        """Start draining in a child when it records something: a child that never does has no thread of ours."""
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
            when_imported(stop.place[0], _expect_stopped_recomputation, stop.lost)
            _session = Session(recorder)
        return _session


def _expect_stopped_recomputation() -> None:
    """Take the exception by which activation checkpointing stops a recomputation for no failure."""
    stop = details.find("stopped_recomputation")
    if stop is not None:
        add_control_flow(stop)
