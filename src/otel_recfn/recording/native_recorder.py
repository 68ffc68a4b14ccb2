"""The native recorder behind the recorder protocol: ``_native``'s functions, their columns as a Batch.

Raises:
    ImportError: on import, where the native part was not built.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_recfn import _native
from otel_recfn.model.events import Extra
from otel_recfn.ranges.protocol import RangeObserver
from otel_recfn.recording.protocol import ContextReading, Keep, RecorderCounters
from otel_recfn.recording.trace_states import TraceStates
from otel_recfn.recording.watched import Watching, unwatch, watch
from otel_recfn.support.greenlets import threads_are_greenlets
from otel_recfn.support.imports import imported
from otel_recfn.support.waker import Waker

if TYPE_CHECKING:
    from otel_recfn.model.batch import Batch, Track

PACKAGE = Path(__file__).parents[1]
_LOW_64 = (1 << 64) - 1
_MAX_REMEMBERED_THREADS = 4096
SOON_SECONDS = 0.1
"""As a drain would come, where there is one."""


class NativeRecorder:
    """The process's native recorder (its state lives in the extension module: make one object only)."""

    record_function: type[Any] = _native.record_function
    begin = staticmethod(_native.begin)
    end = staticmethod(_native.end)
    begin_call = staticmethod(_native.begin_call)

    def __init__(self) -> None:
        self._names: list[str] = []
        self._waker = Waker()
        self._epoch = 0
        self._watching: Watching | None = None
        self._when_recorded: Callable[[], object] | None = None
        self._thread_names: dict[int, str] = {}
        trace_states = TraceStates()
        self.keep_trace_state, self.split_flags = trace_states.keep, trace_states.split
        self.range_observer: RangeObserver | None = None
        self._set_helpers()
        _native.set_own_directory(str(PACKAGE) + os.sep)
        _native.set_context_reader(None, self._note_thread)

    def start(self, scopes: int, buffer_bytes: int, extras: Extra = Extra.NONE, sampled_alone: bool = False) -> None:
        """See Recorder.start."""
        imported("otel_recfn.recording.native_columns")
        self._watching = watch(self)
        _native.start(scopes, buffer_bytes, extras, sampled_alone)

    def stop(self) -> None:
        """See Recorder.stop."""
        _native.stop()
        unwatch(self._watching)

    @property
    def recording(self) -> bool:
        """See Recorder.recording."""
        return _native.recording()

    @property
    def extras(self) -> Extra:
        """See Recorder.extras."""
        return Extra(_native.extras())

    def mark(self, name: str) -> int:
        """See Recorder.mark."""
        return _native.mark(name)

    def say_code(self, code: str) -> None:
        """See Recorder.say_code."""
        _native.say_code(code)

    def memory(self, nbytes: int, device: str) -> int:
        """See Recorder.memory."""
        return _native.memory(nbytes, device)

    def set_profiler(self, profiler: int) -> None:
        """See Recorder.set_profiler."""
        _native.set_profiler(profiler)

    def profiler(self) -> int:
        """See Recorder.profiler."""
        return _native.profiler()

    def set_thread_enabled(self, enabled: bool) -> bool:
        """See Recorder.set_thread_enabled."""
        return _native.set_thread_enabled(enabled)

    def thread_enabled(self) -> bool:
        """See Recorder.thread_enabled."""
        return _native.thread_enabled()

    def current_thread_id(self) -> int:
        """See Recorder.current_thread_id."""
        return _native.current_thread_id()

    def new_track(self) -> int:
        """See Recorder.new_track."""
        return _native.new_track()

    def set_default_node_id(self, node_id: int) -> None:
        """See Recorder.set_default_node_id."""
        _native.set_default_node_id(node_id)

    def default_node_id(self) -> int:
        """See Recorder.default_node_id."""
        return _native.default_node_id()

    def drain(self, *, close_open: bool = False, open_ranges: bool = False, keep: Keep | None = None) -> Batch:
        """See Recorder.drain."""
        try:
            while True:
                batch, drain = self._sealed(close_open, open_ranges)
                into, entry = ([], batch) if keep is None else (keep.into, keep.entry_of(batch))
                if _native.taken(drain, into, entry):
                    return batch
                # A signal handler drained meanwhile, and has these rows.
        except MemoryError:
            if close_open:
                _native.discard()
            raise

    def _sealed(self, close_open: bool, open_ranges: bool) -> tuple[Batch, int]:
        """What the drain read, and its number, to acknowledge it by."""
        from otel_recfn.model.batch import Batch, SpanContextRef
        from otel_recfn.recording.native_columns import announced, columns

        known_epoch, known, drained_ns = self._epoch, len(self._names), time.time_ns()
        raw = _native.drain(close_open, open_ranges, known_epoch, known)
        rows, opened, epoch, new_names, threads, contexts, closed, jump_ns, complete, drain = raw
        self._take_names(epoch, known if epoch == known_epoch else 0, new_names)
        batch = Batch(
            **columns(rows),
            names=self._names,
            tracks=self._tracks(threads),
            contexts=[
                SpanContextRef(high << 64 | low, span_id, *self.split_flags(flags)) for high, low, span_id, flags in contexts
            ],
            opened=announced(opened, self._names),
            closed=closed,
            clock_jump_ns=jump_ns,
            drained_ns=drained_ns,
            complete=complete,
        )
        return batch, drain

    def wait(self, timeout_s: float) -> None:
        """See Recorder.wait."""
        if threads_are_greenlets():
            self._waker.wait(timeout_s)  # the native wait would hold up all of them
        else:
            _native.wait(timeout_s)

    def wake(self) -> None:
        """See Recorder.wake."""
        _native.wake()
        self._waker.wake()

    def call_when_recorded(self, call: Callable[[], object]) -> None:
        """See Recorder.call_when_recorded."""
        self._when_recorded = call

    def dropped_by_thread(self) -> Mapping[int, int]:
        """See Recorder.dropped_by_thread."""
        return _native.dropped_by_thread()

    def counters(self) -> RecorderCounters:
        """See Recorder.counters."""
        return RecorderCounters(*_native.counters())

    def set_context_reader(self, reader: Callable[[], ContextReading | None] | None) -> None:
        """See Recorder.set_context_reader."""
        _native.set_context_reader(None if reader is None else partial(_read_words, reader), self._note_thread)

    def set_range_observer(self, observer: RangeObserver | None, version: int = 0) -> None:
        """See Recorder.set_range_observer."""
        self.range_observer = observer
        _native.set_range_observer(observer, version)

    def leave_unobserved(self, ranges: int, version: int) -> int:
        """See Recorder.leave_unobserved."""
        return _native.leave_unobserved(ranges, version)

    def take_back_unobserved(self) -> int:
        """See Recorder.take_back_unobserved."""
        return _native.take_back_unobserved()

    def enter(self, event_id: int) -> Any | None:
        """See Recorder.enter."""
        return _native.enter(event_id)

    def leave(self, entered: Any) -> None:
        """See Recorder.leave."""
        _native.leave(entered)

    def is_in(self, entered: Any) -> bool:
        """See Recorder.is_in."""
        return _native.is_in(entered)

    def ranges_after(self, span: object) -> tuple[Any, ...]:
        """See Recorder.ranges_after."""
        return _native.ranges_after(span)

    def serial(self) -> int:
        """See Recorder.serial."""
        return _native.task_serial()

    def span_attached(self, span: object, token: object) -> None:
        """See Recorder.span_attached."""
        _native.span_attached(span, token)

    def context_attached(self, token: object) -> None:
        """See Recorder.context_attached."""
        _native.context_attached(token)

    def span_detached(self, token: object) -> None:
        """See Recorder.span_detached."""
        _native.span_detached(token)

    @property
    def before_launch(self) -> Callable[[Any], Any]:
        """See Recorder.before_launch."""
        return _native.before_launch

    def launching_span(self) -> Any | None:
        """See Recorder.launching_span."""
        return _native.launching_span()

    def core_api_address(self) -> int:
        """Where the torch observer finds the recorder's C interface (``native/core/core_api.hpp``)."""
        return _native.core_api_address()

    def _take_names(self, epoch: int, first: int, new_names: list[str]) -> None:
        # Batches of an earlier epoch keep the earlier list: it is left alone, not emptied.
        if epoch != self._epoch:
            self._names, self._epoch = [], epoch
        # A signal handler that drained since then has taken some of them.
        self._names.extend(new_names[len(self._names) - first :])

    def _note_thread(self, number: int) -> bool:
        """Called in a thread at its first look at the context: its name may be gone when the drain comes.

        Returns whether Python started the thread.
        """
        call, self._when_recorded = self._when_recorded, None
        if call is not None:
            self._call_soon(call)
        ident = threading.get_ident()
        for thread in threading.enumerate():
            if thread.ident == ident:
                self._remember(number, thread.name)
                return type(thread).__name__ != "_DummyThread"  # which stands for a thread that others started
        return False

    def _call_soon(self, call: Callable[[], object]) -> None:
        """In another thread: this one begins a range, and may hold any lock."""
        try:
            if threads_are_greenlets():  # what a thread of the system's starts would never go on
                _thread.start_new_thread(_call_later, (SOON_SECONDS, call))
            else:
                _native.call_later(SOON_SECONDS, call)
        except (MemoryError, RuntimeError):  # no more threads: the next thread that records tries again
            self._when_recorded = self._when_recorded or call

    def _remember(self, number: int, name: str) -> None:
        if len(self._thread_names) >= _MAX_REMEMBERED_THREADS:
            self._thread_names.pop(next(iter(self._thread_names)), None)
        self._thread_names[number] = name

    def _tracks(self, threads: list[tuple[int, int, int, int]]) -> list[Track]:
        from otel_recfn.model.batch import Track

        living = {thread.ident: thread.name for thread in threading.enumerate()}
        infos = []
        for number, thread_id, native_id, ident in threads:
            name = living.get(ident) or self._thread_names.get(number, "")
            if name and number not in self._thread_names:
                self._remember(number, name)
            infos.append(Track(number, thread_id, native_id, ident if name else 0, name))
        return infos

    def _set_helpers(self) -> None:
        from otel_recfn.ranges import aenter, aexit, decorate
        from otel_recfn.ranges.signatures import arguments
        from otel_recfn.support.stack_trace import failure

        _native.set_record_function_helpers(self, decorate, aenter, aexit, failure, arguments)


def _call_later(seconds: float, call: Callable[[], object]) -> None:
    time.sleep(seconds)
    call()


def _read_words(reader: Callable[[], ContextReading | None]) -> tuple[int, int, int, int, int, int, object] | None:
    """A reading in 64-bit words, as the extension takes it."""
    reading = reader()
    if reading is None:
        return None
    trace_id, span_id, flags, enclosing, root, span = reading
    return trace_id >> 64, trace_id & _LOW_64, span_id, flags, enclosing, root, span
