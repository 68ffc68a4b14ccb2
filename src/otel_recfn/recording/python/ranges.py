"""Begin and end of the Python twin: what every range of the program passes through.

They append to the calling thread's own log (``log``, ``threads``) and note what the calling task is in (``task``). Neither
raises into the program, except what a signal handler of the program's raised meanwhile.

Unlike the native twin this one doesn't cache what the context reader says: noticing a switch of contextvars context would
cost as much as reading, so it reads at every begin.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from otel_recfn.model.events import ORDINAL_BITS, ContextFlag, EventFlag, EventKind, EventSource, Extra
from otel_recfn.model.scope import RecordScope
from otel_recfn.model.sources import SOURCES_WITHOUT_SCOPES
from otel_recfn.recording.limits import (
    MAX_ERROR_BYTES,
    MAX_NAME_BYTES,
    MAX_REMOTE_ENDS,
    MAX_REMOTE_ERROR_BYTES,
    MAX_SHAPES_BYTES,
    MAX_STACKTRACE_BYTES,
)
from otel_recfn.recording.protocol import ContextReading
from otel_recfn.recording.python.log import NO_FAILURE, Details, Failure, Record, ThreadLog
from otel_recfn.recording.python.stack import python_stack
from otel_recfn.recording.python.task import Recording, TaskEntry
from otel_recfn.recording.python.text import clean_text, utf8_size
from otel_recfn.recording.python.threads import ThreadLogs

# Plain ints: arithmetic on an IntFlag costs a microsecond.
ASYNC = int(EventFlag.ASYNC)
RECORD_FUNCTION = int(EventSource.RECORD_FUNCTION)
SAMPLED, SUPPRESSED = int(ContextFlag.SAMPLED), int(ContextFlag.SUPPRESSED)
FUNCTION, PYTHON_CALL = int(RecordScope.FUNCTION), int(EventSource.PYTHON_CALL)
BACKWARD, RANGE = int(RecordScope.BACKWARD_FUNCTION), int(EventKind.RANGE)
MARK = Details(kind=int(EventKind.MARK))


class BeginsAndEnds:
    """The methods of ``protocol.Recorder`` that record."""

    def __init__(self) -> None:
        self._recording, self._scopes = False, 0
        self._extras, self._with_stack, self._sampled_alone = Extra.NONE, False, False
        self._reader: Callable[[], ContextReading | None] | None = None
        self._node_id = -1
        self._tasks = Recording()
        self._threads = ThreadLogs()

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
        step_number: int = -1,
        code: str = "",
        concrete_inputs: str = "",
        words: str = "",
    ) -> int:
        """See Recorder.begin."""
        if not self._recording or not (source in SOURCES_WITHOUT_SCOPES or self._scopes >> scope & 1):
            return 0
        stack = python_stack() if self._with_stack and scope != BACKWARD else ""
        details = None
        texts_too = stack or shapes or dtypes or code or concrete_inputs or words
        if texts_too or handle or sequence_nr != -1 or forward_thread_id or debug_handle != -1 or step_number != -1:
            fits = max([utf8_size(text) for text in (shapes, dtypes, concrete_inputs)]) <= MAX_SHAPES_BYTES
            texts = (shapes, dtypes) if fits else ("", "")
            told = concrete_inputs if fits else ""
            kept = words if utf8_size(words) <= MAX_SHAPES_BYTES else ""
            numbers = (RANGE, sequence_nr, forward_thread_id, handle, debug_handle)
            details = Details(*numbers, *texts, stack, step_number=step_number, code=code, concrete_inputs=told, words=kept)
        return self._record(name, scope, source, module, flags, details)

    def begin_call(self, name: str) -> int:
        """See Recorder.begin_call."""
        return self._record(name, FUNCTION, PYTHON_CALL, "", 0, None) if self._recording else 0

    def mark(self, name: str) -> int:
        """See Recorder.mark."""
        if not isinstance(name, str):
            raise TypeError(f"mark takes a name, a str, not {type(name).__name__}")
        return self._record(name, 0, RECORD_FUNCTION, "", 0, MARK) if self._recording else 0

    def say_code(self, code: str) -> None:
        """See Recorder.say_code: there are none of PyTorch's here."""

    def memory(self, nbytes: int, device: str) -> int:
        """See Recorder.memory."""
        if not self._recording or not self._extras & Extra.MEMORY:
            return 0
        report = Details(kind=int(EventKind.MEMORY), nbytes=nbytes, device=device)
        return self._record("[memory]", 0, RECORD_FUNCTION, "", 0, report)

    def _record(self, name: str, scope: int, source: int, module: str, flags: int, details: Details | None) -> int:
        log = self._threads.own()
        if not log.enabled:
            return 0
        if not log.recorded:  # the log may have been made before the size of its buffer was known
            log.set_capacity(self._threads.capacity)
            self._threads.tell_recorded()
        ends_later = details is None or details.kind == RANGE
        if not log.has_room() or (ends_later and not log.has_depth(bool(flags & ASYNC))):
            log.dropped += 1
            return 0
        ordinal, tasks = 0, self._tasks
        try:
            parent, root, context = self._find_parent(tasks, log)
            if ends_later and not log.has_depth(bool(flags & ASYNC)):  # looking may have begun ranges
                log.dropped += 1
                return 0
            if self._sampled_alone and parent >> ORDINAL_BITS != log.number and _gets_no_spans(context):
                log.unsampled += 1
                return 0
            texts = (name[:MAX_NAME_BYTES], scope, source, module[:MAX_NAME_BYTES])
            # Made before the record, so that whoever saw that in a drain and asks for a serial then gets a larger one.
            own = TaskEntry(tasks, context=context, scope=scope, source=source)
            # One statement without a call: a finalizer or signal handler that begins a range cannot come in between.
            log.recorded = ordinal = log.recorded + 1
            own.event_id = event_id = log.number << ORDINAL_BITS | ordinal
            own.root = root = root or event_id
            what = (*texts, flags, parent, root, context, log.profiler, details, self._node_id, tasks)
            if ends_later:
                log.open.add(event_id)
            log.records.append((perf_counter_ns(), log, event_id, what, NO_FAILURE))
            if ends_later:
                if source == PYTHON_CALL:
                    log.calls.append(own)
                tasks.begun(own, enters=not flags & ASYNC and source != PYTHON_CALL)
        except BaseException as error:
            return self._interrupted(error, log, ordinal, tasks)
        return event_id

    def _interrupted(self, error: BaseException, log: ThreadLog, ordinal: int, tasks: Recording) -> int:
        """Something was raised in the middle of a begin. Returns the event id; 0 where the begin is not recorded."""
        event_id = log.number << ORDINAL_BITS | ordinal
        without_memory = isinstance(error, MemoryError)
        if without_memory and log.has_just_begun(event_id):
            return event_id  # the task may not have noted it: then what begins in this range lies in the range around it
        if ordinal:
            log.take_back(perf_counter_ns(), event_id)
            tasks.ended(event_id)
        if not without_memory:
            raise error  # a signal handler raised it, for the program
        log.dropped += 1
        return 0

    def _find_parent(self, tasks: Recording, log: ThreadLog) -> tuple[int, int, ContextReading | None]:
        """Parent, root (0: the range itself) and context of a range that begins now in the calling task."""
        reading = self._read_context()
        around = tasks.latest(reading.span if reading is not None else None)
        call = log.innermost_call(tasks) if log.calls else None
        if call is not None and (around is None or call.serial > around.serial):
            around = call
        if around is not None and around.span is None:
            return around.event_id, around.root, around.context
        return (reading.enclosing, reading.root or reading.enclosing, reading) if reading is not None else (0, 0, None)

    def end(self, event_id: int, error: str = "", flags: int = 0, stacktrace: str = "") -> None:
        """See Recorder.end."""
        if not event_id:
            return
        try:
            self._end(perf_counter_ns(), event_id, flags, error, stacktrace)
        except MemoryError:
            self._threads.own().lost_ends += 1
        except BaseException:  # a signal handler raised; the range ends all the same, and only once
            self._end(perf_counter_ns(), event_id, flags, error, stacktrace)
            raise

    def _end(self, ticks: int, event_id: int, flags: int, error: str, stacktrace: str) -> None:
        flags |= self._tasks.ended(event_id)
        log = self._threads.own()
        if event_id >> ORDINAL_BITS != log.number:
            kept = Failure(clean_text(error, MAX_REMOTE_ERROR_BYTES)) if error else NO_FAILURE
            self._end_elsewhere((ticks, log, event_id, flags, kept))
        else:
            kept = Failure(error[:MAX_ERROR_BYTES], stacktrace[:MAX_STACKTRACE_BYTES]) if error else NO_FAILURE
            log.end(ticks, event_id, flags, kept)

    def _end_elsewhere(self, record: Record) -> None:
        _, log, event_id, _, _ = record
        owner = self._threads.find(event_id >> ORDINAL_BITS)
        if owner is None:
            return  # begun before a fork, or in a thread that is gone with all its ranges
        if len(self._threads.ended_elsewhere) >= MAX_REMOTE_ENDS:
            log.lost_ends += 1
            return
        self._threads.ended_elsewhere.append(record)
        owner.ended_elsewhere.append(event_id)

    def _read_context(self) -> ContextReading | None:
        try:
            return self._reader() if self._reader is not None else None
        except Exception:  # observing must not break the host; without a reading the range is simply a root
            return None


def _gets_no_spans(context: ContextReading | None) -> bool:
    """Whether what begins in it becomes no span."""
    if context is None:
        return False
    return bool(context.flags & SUPPRESSED or (context.trace_id and not context.flags & SAMPLED))
