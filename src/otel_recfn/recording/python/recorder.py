"""The Python twin: a readable statement of the recorder's contract, and what records where there is no native recorder.

    ranges ──► log of each thread (log, threads), chain of each task (task)
    drain  ──► takes from the logs, replays by ticks (pairing), seals rows (batch)

Only pairing and batch need numpy, so they are imported when recording starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from otel_recfn.model.events import Extra
from otel_recfn.ranges.protocol import RangeObserver
from otel_recfn.recording.protocol import ContextReading, Keep, RecorderCounters
from otel_recfn.recording.python.drain import Drain
from otel_recfn.recording.python.log import BYTES_PER_RANGE
from otel_recfn.recording.python.ranges import BeginsAndEnds
from otel_recfn.recording.python.record_function import make_record_function
from otel_recfn.recording.python.task import Recording, TaskEntry, next_serial
from otel_recfn.recording.trace_states import TraceStates
from otel_recfn.recording.watched import Watching, unwatch, watch
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.imports import imported
from otel_recfn.support.waker import Waker

if TYPE_CHECKING:
    from otel_recfn.model.batch import Batch


class PythonRecorder(BeginsAndEnds):
    """Implements ``protocol.Recorder``."""

    def __init__(self) -> None:
        super().__init__()
        self.range_observer: RangeObserver | None = None
        trace_states = TraceStates()
        self.keep_trace_state, self.split_flags = trace_states.keep, trace_states.split
        self._waker = Waker()
        self._watching: Watching | None = None
        self._drain = Drain(self._threads, self.split_flags)
        self.record_function = make_record_function(self)
        around_forks(Order.RECORDER, in_child=self.after_fork_in_child)

    # --- switching

    def start(self, scopes: int, buffer_bytes: int, extras: Extra = Extra.NONE, sampled_alone: bool = False) -> None:
        """See Recorder.start."""
        for module in ("batch", "pairing"):
            imported(f"otel_recfn.recording.python.{module}")
        self._watching = watch(self)
        if not self._recording:
            self._drain.begin_recording(self._tasks)
            self._start_recording()  # ranges of an earlier recording are no parents in this one
        self._threads.set_capacity(max(1, buffer_bytes // BYTES_PER_RANGE))
        self._extras, self._with_stack, self._sampled_alone = extras, bool(extras & Extra.STACK), sampled_alone
        self._scopes, self._recording = scopes, True

    def stop(self) -> None:
        """See Recorder.stop."""
        if self._recording:
            self._recording = False
            try:
                self._drain.end_recording()
            except MemoryError:
                self._recording = True  # the call is made again
                raise
        unwatch(self._watching)

    @property
    def recording(self) -> bool:
        """See Recorder.recording."""
        return self._recording

    @property
    def extras(self) -> Extra:
        """See Recorder.extras."""
        return self._extras

    def set_context_reader(self, reader: Callable[[], ContextReading | None] | None) -> None:
        """See Recorder.set_context_reader."""
        self._reader = reader

    def set_range_observer(self, observer: RangeObserver | None, version: int = 0) -> None:
        """See Recorder.set_range_observer."""
        self.range_observer = observer

    def leave_unobserved(self, ranges: int, version: int) -> int:
        """0: nothing is left to this recorder, because asking the observer costs as little."""
        return 0

    def take_back_unobserved(self) -> int:
        """0: none were left to this recorder."""
        return 0

    def span_attached(self, span: object, token: object) -> None:
        """See Recorder.span_attached."""
        self._tasks.push(TaskEntry(self._tasks, span=span, token=id(token)))

    def context_attached(self, token: object) -> None:
        """See Recorder.context_attached."""
        gone = self._tasks.find_attached(id(token))
        if gone is not None:
            gone.token = 0  # the token that it knew is gone, and a new one has its address

    @property
    def before_launch(self) -> Callable[[Any], Any]:
        """See Recorder.before_launch. PyTorch is observed by the native recorder alone."""
        return attrgetter("launches")

    def launching_span(self) -> None:
        """See Recorder.launching_span."""

    def span_detached(self, token: object) -> None:
        """See Recorder.span_detached."""
        attached = self._tasks.find_attached(id(token))
        if attached is not None:
            self._tasks.pop(attached)

    # --- tasks

    def enter(self, event_id: int) -> TaskEntry | None:
        """See Recorder.enter."""
        return self._tasks.enter(event_id)

    def leave(self, entered: TaskEntry) -> None:
        """See Recorder.leave."""
        self._tasks.end(entered)

    def is_in(self, entered: TaskEntry) -> bool:
        """See Recorder.is_in."""
        return entered in self._tasks.entries()

    def serial(self) -> int:
        """See Recorder.serial."""
        return next_serial()

    def ranges_after(self, span: object) -> tuple[TaskEntry, ...]:
        """See Recorder.ranges_after."""
        return self._tasks.ranges_after(span)

    # --- threads

    def set_profiler(self, profiler: int) -> None:
        """See Recorder.set_profiler."""
        self._threads.own().profiler = profiler

    def profiler(self) -> int:
        """See Recorder.profiler."""
        return self._threads.own().profiler

    def set_thread_enabled(self, enabled: bool) -> bool:
        """See Recorder.set_thread_enabled."""
        log = self._threads.own()
        before, log.enabled = log.enabled, enabled
        return before

    def thread_enabled(self) -> bool:
        """See Recorder.thread_enabled."""
        log = self._threads.existing()
        return log is None or log.enabled

    def current_thread_id(self) -> int:
        """See Recorder.current_thread_id."""
        return self._threads.own().number

    def new_track(self) -> int:
        """See Recorder.new_track."""
        return self._threads.new_number()

    def set_default_node_id(self, node_id: int) -> None:
        """See Recorder.set_default_node_id."""
        self._node_id = node_id

    def default_node_id(self) -> int:
        """See Recorder.default_node_id."""
        return self._node_id

    def _start_recording(self) -> None:
        self._tasks.is_current = False
        self._tasks = Recording()

    def after_fork_in_child(self) -> None:
        """Forget everything that the parent process recorded; the child records its own, its one thread as it was set."""
        inherited = self._threads.existing()
        self._waker = Waker()
        self._threads.start_empty()
        self._drain.start_empty()
        self._start_recording()
        if inherited is not None:
            log = self._threads.own()
            log.profiler, log.enabled = inherited.profiler, inherited.enabled

    # --- draining

    def drain(self, *, close_open: bool = False, open_ranges: bool = False, keep: Keep | None = None) -> Batch:
        """See Recorder.drain."""
        return self._drain.run(self._tasks, close_open, open_ranges, keep)

    def wait(self, timeout_s: float) -> None:
        """See Recorder.wait. Threads don't wake it: a buffer of the default size is not full before the next drain."""
        self._waker.wait(timeout_s)

    def wake(self) -> None:
        """See Recorder.wake."""
        self._waker.wake()

    def call_when_recorded(self, call: Callable[[], object]) -> None:
        """See Recorder.call_when_recorded."""
        self._threads.when_recorded = call

    def dropped_by_thread(self) -> Mapping[int, int]:
        """See Recorder.dropped_by_thread."""
        return self._threads.dropped()

    def counters(self) -> RecorderCounters:
        """See Recorder.counters."""
        counters = self._threads.counters()
        return counters._replace(recorded=counters.recorded - self._drain.too_late, lost_in_drain=self._drain.lost)
