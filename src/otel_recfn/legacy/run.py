"""One run of the legacy profiler: what the PROFILER_STATE slot of a thread's debug info holds.

Source: ``ProfilerLegacyThreadLocalState``. Threads that got the slot from another take part in that one's run; the recorder
marks their rows with the run's number, and the run is a capture that sees those alone.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, MutableSequence
from functools import partial
from itertools import count
from typing import Any

from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.merging import EventStore, merged
from otel_recfn.batches.selection import Selected
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import INVALID_CALLBACK_HANDLE, add_thread_local_callback
from otel_recfn.callbacks.thread_locals import DebugInfoKind, debug_info_get
from otel_recfn.legacy.config import START_PROFILE, ActiveProfilerType, EventKind, ProfilerConfig, ProfilerState
from otel_recfn.legacy.cuda import CudaTimes, begin_timing_memory, collect_memory_times, cuda_stubs, end_timing_memory
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.from_batch import event_lists
from otel_recfn.legacy.thread_events import ThreadEventLists, no_collections
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES
from otel_recfn.session import process_session
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.in_memory import EventStoreSink

log = logging.getLogger("otel_recfn")

MAX_EVENTS = 4_000_000
"""Rows kept until they are consolidated; beyond it the oldest are dropped, and that is logged."""
STOP_SECONDS = 10.0
_numbers = count(1)


class ProfilerRun:
    """A run, from ``start`` to ``stop``; one that nobody refers to any more ends by itself.

    Attributes:
        config: what it records.
        number: what marks its rows; the process's first has 1.
        cuda_times: when its ranges came to pass on the GPU.
        callback_handle: of the thread-local callback that it needs, INVALID_CALLBACK_HANDLE where it needs none.
        over: it was stopped.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        self.config = config
        self.number = next(_numbers)
        self.cuda_times = CudaTimes(MAX_EVENTS)
        self._store = EventStore(MAX_EVENTS)
        selected = Selected(ALL_SCOPES_MASK, config.extras, profiler=self.number)
        self._capture = Capture(selected, [EventStoreSink(self._store)], buffer_bytes=PROFILE_BUFFER_BYTES)
        self.callback_handle = INVALID_CALLBACK_HANDLE
        self.over = False
        self._give_up: weakref.finalize[..., ProfilerRun] | None = None
        self._pid = os.getpid()
        self._start_mark: LegacyEvent | None = None
        self._remote_events: list[list[LegacyEvent]] = []

    @property
    def profiler_type(self) -> ActiveProfilerType:
        """Which profiler this is: what PyTorch asks of the debug info in its slot for profilers (``profilerType``)."""
        return ActiveProfilerType.LEGACY

    def start(self) -> None:
        """Record what happens in threads that take part."""
        if self.config.records_events:
            process_session().start(self._capture)
            self._give_up = weakref.finalize(self, _stop_soon, self._capture)
            self._give_up.atexit = False

    def stop(self) -> None:
        """Record nothing more; ranges that are open stay without an end."""
        self.over = True
        process_session().stop(self._capture, STOP_SECONDS)
        end_timing_memory(self.cuda_times)
        if self._give_up is not None:
            self._give_up.detach()

    def mark(self, name: str, include_cuda: bool = True) -> None:
        """Note a mark in the calling thread; in a CUDA run also on the GPU."""
        if self.config.state == ProfilerState.NVTX:
            cuda_stubs().mark(name)
        elif self.config.records_events:
            event_id = recorder.mark(name)
            if include_cuda and self.config.state == ProfilerState.CUDA and cuda_stubs().enabled():
                self.cuda_times.record(EventKind.MARK, event_id)

    def mark_start(self) -> None:
        """The mark that times are relative to, kept beside the store: it survives when the oldest events are dropped."""
        self._start_mark = LegacyEvent(EventKind.MARK, START_PROFILE, recorder.current_thread_id(), cpu_ns=time.time_ns())
        self.mark(START_PROFILE, include_cuda=False)

    def add_remote_events(self, events: Iterable[LegacyEvent]) -> None:
        """Events of another process, a list of their own when the run is consolidated."""
        self._remote_events.append(list(events))

    def consolidate(self) -> ThreadEventLists:
        """The events of every thread since the last time, then those that were added. They are the caller's now.

        A range that is open stays until it has ended, or the run has.
        """
        process_session().flush(self._capture, STOP_SECONDS)
        collect_memory_times()
        rows = merged(self._store.take())
        remote, self._remote_events = self._remote_events, []
        with no_collections():
            lists = event_lists(rows, self.cuda_times, self.config)
            found: list[MutableSequence[LegacyEvent]] = [*self._lost_start(), *lists, *remote]
        return ThreadEventLists(found, partial(key_averages, rows), process_session().lost(self._capture))

    def _lost_start(self) -> list[list[LegacyEvent]]:
        """The start mark where the store lost it: older events were dropped, or this is a forked child, which begins empty."""
        mark, self._start_mark = self._start_mark, None
        dropped = self._store.dropped
        if dropped:
            log.warning("the profiler kept its newest %d events; %d older ones were dropped", MAX_EVENTS, dropped)
        return [[mark]] if mark is not None and (dropped or os.getpid() != self._pid) else []


def _stop_soon(capture: Capture) -> None:
    """End the capture in another thread, because the last reference may be dropped where locks are held.

    ``threading.Thread`` can't be used: it takes locks itself.
    """
    if sys.is_finalizing():
        return
    try:
        _thread.start_new_thread(process_session().stop, (capture, STOP_SECONDS))
    except RuntimeError:  # no more threads here, or none any more: the capture ends with the process, at the latest
        pass


# --- a CUDA run's or an NVTX run's callback on the thread's ranges


NOT_TIMED = frozenset(
    f"aten::{name}"
    for name in (
        "view",
        "t",
        "transpose",
        "stride",
        "empty",
        "empty_like",
        "empty_strided",
        "as_strided",
        "expand",
        "resize_",
        "squeeze",
        "unsqueeze",
        "slice",
        "_unsafe_view",
        "size",
    )
)
"""Operators that launch nothing on a GPU: timing them would only cost."""


def add_cuda_callback(run: ProfilerRun) -> int:
    """Time the calling thread's ranges on the GPU, or announce them to NVIDIA's tools, if the run asks for that.

    The thread-local state carries the callback to work that the thread launches. If the run is disabled without cleanup, the
    callback stays and does nothing.

    Returns:
        The callback's handle, or INVALID_CALLBACK_HANDLE.
    """
    living = partial(_living, weakref.ref(run))
    if run.config.state == ProfilerState.NVTX:
        with_shapes = run.config.report_input_shapes
        start = partial(_push_range, living, with_shapes)
        return add_thread_local_callback(RecordFunctionCallback(start, _pop_range).needs_inputs(with_shapes))
    if run.config.state != ProfilerState.CUDA:
        return INVALID_CALLBACK_HANDLE
    if not cuda_stubs().enabled():
        log.warning("CUDA is not available; ranges are timed on the CPU alone")
        return INVALID_CALLBACK_HANDLE
    if run.config.profile_memory:
        begin_timing_memory(run.cuda_times)
    callback = RecordFunctionCallback(partial(_time_begin, living), partial(_time_end, living))
    return add_thread_local_callback(callback.needs_ids(True))


def _living(reference: weakref.ref[ProfilerRun]) -> ProfilerRun | None:
    """The run, where it isn't over and no other one shadows it. PyTorch's own threads have no debug info of ours."""
    run = reference()
    shadow = debug_info_get(DebugInfoKind.PROFILER_STATE)
    return run if run is not None and not run.over and shadow in (None, run) else None


def _time_begin(living: Callable[[], ProfilerRun | None], fn: Any) -> bool:
    run = living()
    if run is None or fn.name() in NOT_TIMED:
        return False
    run.cuda_times.record(EventKind.PUSH_RANGE, fn.handle())
    return True


def _time_end(living: Callable[[], ProfilerRun | None], fn: Any, timed: bool) -> None:
    run = living()
    if run is not None and timed:
        run.cuda_times.record(EventKind.POP_RANGE, fn.handle())


def _push_range(living: Callable[[], ProfilerRun | None], with_shapes: bool, fn: Any) -> bool:
    if living() is None:
        return False
    cuda_stubs().range_push(nvtx_text(fn.name(), fn.seq_nr(), _shapes(fn.inputs()) if with_shapes else []))
    return True


def _pop_range(_fn: Any, pushed: bool) -> None:
    if pushed:
        cuda_stubs().range_pop()


def nvtx_text(name: str, sequence_nr: int, shapes: list[list[int]]) -> str:
    """What NVIDIA's tools show: ``aten::add, seq = 3, sizes = [[2, 3], []]`` (source: ``getNvtxStr``)."""
    text = f"{name}, seq = {sequence_nr}" if sequence_nr >= 0 else name
    return f"{text}, sizes = {shapes}" if shapes else text


def _shapes(inputs: Iterable[Any]) -> list[list[int]]:
    return [[int(size) for size in getattr(value, "shape", ())] for value in inputs]
