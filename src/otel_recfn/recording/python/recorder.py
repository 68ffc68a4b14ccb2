"""The Python twin: the readable statement of the recorder's contract, and what really runs where no compiler was there.

begin and end append to the calling thread's own log (``python_log``). drain takes what is there, replays it in the order of
its ticks (``python_pairing``) and seals rows (``python_batch``). Only the drain needs numpy, so only it imports it.

Unlike the native twin this one doesn't cache what the context reader says: noticing a switch of contextvars context would
cost as much as reading, so it reads at every begin.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING

from otel_recfn.model.clock import ClockMapping, Reading, Ticks
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import ORDINAL_BITS, EventFlag, EventKind, EventSource, Extra
from otel_recfn.model.scope import RecordScope
from otel_recfn.ranges.protocol import RangeObserver
from otel_recfn.recording.protocol import ContextReading, RecorderCounters
from otel_recfn.recording.python.log import BYTES_PER_RANGE, Alive, Details, Record, TakenRecords, ThreadLog
from otel_recfn.recording.python.record_function import make_record_function
from otel_recfn.recording.python.stack import python_stack
from otel_recfn.recording.python.task import Recording, TaskEntry, next_serial
from otel_recfn.recording.trace_states import TraceStates
from otel_recfn.support.forks import Order, around_forks

if TYPE_CHECKING:
    from otel_recfn.model.batch import Batch
    from otel_recfn.recording.python.batch import BatchBuilder
    from otel_recfn.recording.python.pairing import Pairing

MAX_REMOTE_ENDS = 1 << 16
MAX_WAITING = 1 << 16
"""Records and rows that wait for memory to deliver them in; beyond it no more are taken from the threads' logs."""
MAX_NAME_CHARS = 2048
MAX_ERROR_CHARS = 1024
MAX_SHAPES_CHARS = 16_384
"""Cut before they wait in a buffer; the exact limits, in bytes, are ``python_batch``'s."""

# Plain ints: arithmetic on an IntFlag costs a microsecond.
ASYNC, SHOWN = int(EventFlag.ASYNC), int(EventFlag.SHOWN)
MODULE, RECORD_FUNCTION = int(EventSource.MODULE), int(EventSource.RECORD_FUNCTION)
BACKWARD, RANGE = int(RecordScope.BACKWARD_FUNCTION), int(EventKind.RANGE)
MARK = Details(kind=int(EventKind.MARK))
NEVER = 1 << 63
NOTHING = RecorderCounters(recorded=0, dropped=0, lost_ends=0)


class PythonRecorder:
    """Implements ``protocol.Recorder``."""

    def __init__(self) -> None:
        self._recording = False
        self._scopes = self._numbers = 0
        self._capacity, self._node_id = 1, -1
        self._extras, self._with_stack = Extra.NONE, False
        self._reader: Callable[[], ContextReading | None] | None = None
        self.range_observer: RangeObserver | None = None
        self._tasks = Recording()
        trace_states = TraceStates()
        self.keep_trace_state, self.split_flags = trace_states.keep, trace_states.split
        self._start_empty()
        self.record_function = make_record_function(self)
        around_forks(Order.RECORDER, in_child=self.after_fork_in_child)

    # --- switching

    def start(self, scopes: int, buffer_bytes: int, extras: Extra = Extra.NONE) -> None:
        """See Recorder.start."""
        if not self._recording:
            self._start_recording()  # ranges of an earlier one are nobody's parents
            self._clock.begin(_read_clocks())
        self._capacity = max(1, buffer_bytes // BYTES_PER_RANGE)
        self._extras, self._with_stack = extras, bool(extras & Extra.STACK)
        self._scopes, self._recording = scopes, True

    def stop(self) -> None:
        """See Recorder.stop."""
        self._recording = False

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
        """None: here the observer is asked as quickly."""
        return 0

    def take_back_unobserved(self) -> int:
        """None were left to the recorder."""
        return 0

    def span_attached(self, span: object, token: object) -> None:
        """See Recorder.span_attached."""
        self._tasks.push(TaskEntry(self._tasks, span=span, token=id(token)))

    def context_attached(self, token: object) -> None:
        """See Recorder.context_attached."""
        gone = self._tasks.find_attached(id(token))
        if gone is not None:
            gone.token = 0  # its own token is no more: this one has the address

    def span_detached(self, token: object) -> None:
        """See Recorder.span_detached."""
        attached = self._tasks.find_attached(id(token))
        if attached is not None:
            self._tasks.pop(attached)

    # --- recording

    def begin(
        self,
        name: str,
        scope: int,
        source: int,
        module: str = "",
        flags: int = 0,
        *,
        sequence_nr: int = -1,
        forward_thread_id: int = 0,
        handle: int = 0,
        debug_handle: int = -1,
        shapes: str = "",
        dtypes: str = "",
    ) -> int:
        """See Recorder.begin."""
        if not self._recording or not (source == MODULE or self._scopes >> scope & 1):
            return 0
        stack = python_stack() if self._with_stack and scope != BACKWARD else ""
        details = None
        if stack or handle or shapes or sequence_nr != -1 or forward_thread_id or debug_handle != -1:
            fits = max(len(shapes), len(dtypes)) <= MAX_SHAPES_CHARS
            texts = (shapes, dtypes) if fits else ("", "")
            details = Details(RANGE, sequence_nr, forward_thread_id, handle, debug_handle, *texts, stack)
        return self._record(name, scope, source, module, flags, details)

    def mark(self, name: str) -> int:
        """See Recorder.mark."""
        if not isinstance(name, str):
            raise TypeError(f"mark takes a name, a str, not {type(name).__name__}")
        return self._record(name, 0, RECORD_FUNCTION, "", 0, MARK) if self._recording else 0

    def memory(self, nbytes: int, device: str) -> int:
        """See Recorder.memory."""
        if not self._recording or not self._extras & Extra.MEMORY:
            return 0
        report = Details(kind=int(EventKind.MEMORY), nbytes=nbytes, device=device)
        return self._record("[memory]", 0, RECORD_FUNCTION, "", 0, report)

    def _record(self, name: str, scope: int, source: int, module: str, flags: int, details: Details | None) -> int:
        log = self._own_log()
        if not log.enabled:
            return 0
        if not log.recorded:  # its thread number may have been asked for before it was known how large its buffer is to be
            log.set_capacity(self._capacity)
        ends_later = details is None or details.kind == RANGE
        if not log.has_room() or (ends_later and not log.has_depth(bool(flags & ASYNC))):
            log.dropped += 1
            return 0
        parent, root, context = self._find_parent()
        texts = (name[:MAX_NAME_CHARS], scope, source, module[:MAX_NAME_CHARS])
        # One statement without a call: a finalizer or signal handler that begins a range cannot come in between.
        log.recorded = ordinal = log.recorded + 1
        event_id = log.number << ORDINAL_BITS | ordinal
        what = (*texts, flags, parent, root or event_id, context, log.profiler, details)
        if ends_later:
            log.stack.append(event_id)
        log.records.append((perf_counter_ns(), log, event_id, what, ""))
        if ends_later:
            own = TaskEntry(self._tasks, event_id=event_id, root=root or event_id, context=context, scope=scope, source=source)
            self._open_ranges[event_id] = own
            if not flags & ASYNC:
                self._tasks.push(own)
        return event_id

    def _find_parent(self) -> tuple[int, int, ContextReading | None]:
        """Parent, root (0: the range itself) and context of a range that begins now in the calling task."""
        reading = self._read_context()
        ranges = self._tasks.ranges_after(reading.span if reading is not None else None)
        if ranges:
            return ranges[0].event_id, ranges[0].root, ranges[0].context
        return (reading.enclosing, reading.root or reading.enclosing, reading) if reading is not None else (0, 0, None)

    def enter(self, event_id: int) -> TaskEntry | None:
        """See Recorder.enter."""
        own = self._open_ranges.get(event_id)
        newest = self._tasks.innermost()
        if own is None or (newest is not None and newest.serial > own.serial):
            return None
        entered = own.again()
        self._tasks.push(entered)
        return entered

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

    def end(self, event_id: int, error: str = "", flags: int = 0) -> None:
        """See Recorder.end."""
        if not event_id:
            return
        ticks = perf_counter_ns()
        log = self._own_log()
        flags |= self._end_in_task(event_id)
        if event_id >> ORDINAL_BITS != log.number:
            self._end_elsewhere((ticks, log, event_id, flags, error[:MAX_ERROR_CHARS]))
        elif log.close(event_id):
            log.records.append((ticks, log, event_id, flags, error[:MAX_ERROR_CHARS]))

    def _end_in_task(self, event_id: int) -> int:
        """EventFlag bits of the range's end."""
        own = self._open_ranges.pop(event_id, None)
        if own is None:
            return 0
        flags = SHOWN if own.shown is not None else 0
        self._tasks.end(own)
        return flags

    def _end_elsewhere(self, record: Record) -> None:
        _, log, event_id, _, _ = record
        owner = self._logs.get(event_id >> ORDINAL_BITS)
        if owner is None:
            return  # begun before a fork, or in a thread that is gone with all its ranges
        if len(self._remote_ends) >= MAX_REMOTE_ENDS:
            log.lost_ends += 1
            return
        self._remote_ends.append(record)
        owner.ended_elsewhere.append(event_id)

    def _read_context(self) -> ContextReading | None:
        try:
            return self._reader() if self._reader is not None else None
        except Exception:  # observing must not break the host; without a reading the range is simply a root
            return None

    # --- threads

    def set_profiler(self, profiler: int) -> None:
        """See Recorder.set_profiler."""
        self._own_log().profiler = profiler

    def profiler(self) -> int:
        """See Recorder.profiler."""
        return self._own_log().profiler

    def set_thread_enabled(self, enabled: bool) -> bool:
        """See Recorder.set_thread_enabled."""
        log = self._own_log()
        before, log.enabled = log.enabled, enabled
        return before

    def current_thread_id(self) -> int:
        """See Recorder.current_thread_id."""
        return self._own_log().number

    def set_default_node_id(self, node_id: int) -> None:
        """See Recorder.set_default_node_id."""
        self._node_id = node_id

    def default_node_id(self) -> int:
        """See Recorder.default_node_id."""
        return self._node_id

    def _own_log(self) -> ThreadLog:
        try:
            log: ThreadLog = self._local.log
        except AttributeError:
            log = self._register_thread()
        return log

    def _register_thread(self) -> ThreadLog:
        alive = Alive()
        with self._lock:
            self._numbers += 1
            log = ThreadLog(self._numbers, self._capacity, alive)
            self._logs[log.number] = log
        self._local.alive, self._local.log = alive, log
        log.name = _thread_names().get(log.ident, "")
        return log

    def _start_empty(self) -> None:
        """At birth, and in a forked child, where thread numbers go on so that its ids are not its parent's."""
        self._lock = threading.RLock()
        self._local = threading.local()
        self._woken = threading.Event()
        self._logs: dict[int, ThreadLog] = {}
        self._remote_ends: deque[Record] = deque()
        self._of_dead_threads = NOTHING
        self._pairing: Pairing | None = None
        self._taken = TakenRecords()
        self._unsealed: BatchBuilder | None = None
        """What a drain read that then found no memory: the next one goes on with it."""
        self._lost_in_drain = self._jump_ns = 0
        self._clock = ClockMapping(_read_clocks())
        self._start_recording()

    def _start_recording(self) -> None:
        self._tasks.is_current = False
        self._tasks = Recording()
        self._open_ranges: dict[int, TaskEntry] = {}

    def after_fork_in_child(self) -> None:
        """Forget everything that the parent process recorded; the child records its own, its one thread as it was set."""
        inherited: ThreadLog | None = getattr(self._local, "log", None)
        self._start_empty()
        if inherited is not None:
            log = self._own_log()
            log.profiler, log.enabled = inherited.profiler, inherited.enabled

    # --- draining

    def drain(self, *, close_open: bool = False, open_ranges: bool = False) -> Batch:
        """See Recorder.drain."""
        from otel_recfn.recording.python.batch import BatchBuilder
        from otel_recfn.recording.python.pairing import Pairing

        pairing = self._pairing = self._pairing or Pairing()
        builder, self._unsealed = self._unsealed or BatchBuilder(self._node_id, self.split_flags), None
        try:
            return self._drain_into(builder, pairing, close_open, open_ranges)
        except OUT_OF_MEMORY:
            other, self._unsealed = self._unsealed, builder
            if other is not None:  # of a signal handler that drained meanwhile, and failed too
                self._lost_in_drain += len(other)
            if close_open:
                self._discard(pairing)
            raise

    def _drain_into(self, builder: BatchBuilder, pairing: Pairing, close_open: bool, open_ranges: bool) -> Batch:
        """What may fail comes first: a batch that is sealed is delivered."""
        builder.drop_copies()
        self._anchor(pairing)
        logs, dead = self._look_at_threads()
        complete = self._taken.size + len(builder) < MAX_WAITING
        if complete:
            self._take_records(logs, NEVER if close_open else perf_counter_ns())
        self._taken.replay(partial(pairing.replay, self._clock, builder))
        now = self._clock.monotonic_ns(Ticks(perf_counter_ns()))
        if close_open and complete:
            for item in pairing.close_open(now, builder):
                item.log.ended_elsewhere.append(item.event_id)
                self._end_in_task(item.event_id)
        if open_ranges:
            builder.begin_copies()
            pairing.copy_open(now, builder)
        if complete:
            self._bury([log for log in dead if not log.records and not pairing.has_open(log)], pairing)
        batch = builder.seal(self._jump_ns, complete)
        self._jump_ns = 0
        return batch

    def _discard(self, pairing: Pairing) -> None:
        """Give up, and count, what was recorded and not delivered."""
        unsealed, taken = self._unsealed, TakenRecords()
        if unsealed is not None:
            unsealed.drop_copies()
        rows = len(unsealed) if unsealed is not None else 0
        self._lost_in_drain += rows + self._taken.begins() + pairing.count_open()
        self._unsealed, self._pairing, self._taken = None, None, taken

    def _anchor(self, pairing: Pairing) -> None:
        jump_ns = self._clock.anchor(_read_clocks())
        if jump_ns:
            self._jump_ns += jump_ns
            pairing.note_jump()

    def _look_at_threads(self) -> tuple[list[ThreadLog], list[ThreadLog]]:
        """All logs, and those whose threads are dead; names as they are now."""
        names = _thread_names()
        # Without the lock: a `with` that is left for want of memory may find none for letting go of it. One call takes all.
        logs = list(self._logs.values())
        dead = [log for log in logs if not log.thread_is_alive]
        for log in logs:
            if log not in dead:  # alive after its ident was looked up, so the ident was its own
                log.name = names.get(log.ident, log.name)
        return logs, dead

    def _take_records(self, logs: list[ThreadLog], until: int) -> None:
        # Only what is not younger than ``until``: it may lie in a range of a thread that was looked at before. Only the ends on
        # other threads that are there now: their begins are then certainly in a log already. They stand last, so that in a tie
        # of ticks an end comes after its begin.
        remote_ends = len(self._remote_ends)
        for log in logs:
            self._taken.take(log.records, len(log.records), until)
        self._taken.take(self._remote_ends, remote_ends, until)

    def _bury(self, logs: list[ThreadLog], pairing: Pairing) -> None:
        for log in logs:
            total = _add(self._of_dead_threads, log)
            del self._logs[log.number]
            self._of_dead_threads = total
            pairing.forget(log)

    def wait(self, timeout_s: float) -> None:
        """See Recorder.wait; a drain has time here: a buffer of the default size takes longer to fill than a drain waits."""
        if self._woken.wait(timeout_s):
            self._woken.clear()

    def wake(self) -> None:
        """See Recorder.wake."""
        self._woken.set()

    def counters(self) -> RecorderCounters:
        """See Recorder.counters."""
        with self._lock:
            total = self._of_dead_threads
            for log in self._logs.values():
                total = _add(total, log)
        return total._replace(lost_in_drain=self._lost_in_drain)


def _add(total: RecorderCounters, log: ThreadLog) -> RecorderCounters:
    return RecorderCounters(total.recorded + log.recorded, total.dropped + log.dropped, total.lost_ends + log.lost_ends)


def _thread_names() -> dict[int | None, str]:
    # Not threading.current_thread(): it would leave a dummy thread behind for threads that Python didn't start.
    return {thread.ident: thread.name for thread in threading.enumerate()}


def _read_clocks() -> Reading:
    """Both clocks at one moment, as closely as the best of three tries; ticks are the monotonic clock here."""
    return min((_read_clocks_once() for _ in range(3)), key=lambda reading: reading.took_ns)


def _read_clocks_once() -> Reading:
    before, unix_ns, after = perf_counter_ns(), time_ns(), perf_counter_ns()
    middle = (before + after) // 2
    return Reading(middle, middle, unix_ns, after - before)
