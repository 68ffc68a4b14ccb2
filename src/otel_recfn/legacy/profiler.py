"""The legacy profiler: runs, and how they are enabled and disabled in the calling thread.

Source: torch/csrc/autograd/profiler_legacy.cpp. A run belongs to a thread and to the work that the thread launches meanwhile:
it is debug info (slot PROFILER_STATE), which goes where thread-local state goes, and is shadowed by what is pushed above it.
The recorder marks the rows of these threads with the run's number, and the run is a capture that sees those alone.

    enable     push the run as debug info ► the recorder marks this thread's rows as the run's ► __start_profile
    disable    __stop_profile ► pop ► the rows as events, in lists per thread
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, MutableSequence
from contextlib import suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any

from otel_recfn import _native
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.merging import merged
from otel_recfn.batches.selection import Selected
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import (
    INVALID_CALLBACK_HANDLE,
    add_thread_local_callback,
    remove_callback,
)
from otel_recfn.callbacks.thread_locals import (
    DebugInfoKind,
    debug_info_get,
    debug_info_peek,
    debug_info_pop,
    debug_info_push,
    on_profiler_state,
)
from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.cuda import CudaTimes, cuda_stubs
from otel_recfn.legacy.lists import ThreadEventLists, event_lists
from otel_recfn.legacy.values import (
    START_PROFILE,
    STOP_PROFILE,
    ActiveProfilerType,
    EventKind,
    LegacyEvent,
    ProfilerConfig,
    ProfilerDisableOptions,
    ProfilerState,
)
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.pytorch import profilers
from otel_recfn.pytorch.compiling import trace_instead
from otel_recfn.pytorch.observer import set_profiler
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.in_memory import EventStore
from otel_recfn.support.forks import Order, around_forks

log = logging.getLogger("otel_recfn")

MAX_EVENTS = 4_000_000
"""The rows that are kept until they are consolidated; beyond it the oldest are dropped, which is logged."""
STOP_SECONDS = 10.0
_numbers = count(1)


class ProfilerRun:
    """A run, from ``start`` to ``stop``; it ends when the last reference to it is dropped.

    Attributes:
        number: what marks its rows; the process's first has 1.
        cuda_times: when its ranges came to pass on the GPU.
        callback_handle: of the thread-local callback that it needs, INVALID_CALLBACK_HANDLE if it needs none.
        over: it was stopped.
        remote_events: lists of events of other processes, which are added when the run is consolidated.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        self.config = config
        self.number = next(_numbers)
        self.cuda_times = CudaTimes(MAX_EVENTS)
        self._store = EventStore(MAX_EVENTS)
        selected = Selected(ALL_SCOPES_MASK, config.extras, profiler=self.number)
        self._capture = Capture(selected, [self._store], buffer_bytes=PROFILE_BUFFER_BYTES)
        self.callback_handle = INVALID_CALLBACK_HANDLE
        self.over = False
        self._pid = os.getpid()
        self._start_mark: LegacyEvent | None = None
        self.remote_events: list[list[LegacyEvent]] = []

    def start(self) -> None:
        """Record what happens in threads that take part."""
        if self.config.records_events:
            process_session().start(self._capture)

    def stop(self) -> None:
        """Record nothing more; open ranges stay without an end."""
        self.over = True
        process_session().stop(self._capture, STOP_SECONDS)

    def __del__(self) -> None:
        # Where the last reference is dropped locks may be held: another thread stops it. threading.Thread takes locks itself.
        if not self.over and self.config.records_events and not sys.is_finalizing():
            with suppress(
                RuntimeError
            ):  # no thread can be started: the capture ends with the process, at the latest
                _thread.start_new_thread(process_session().stop, (self._capture, STOP_SECONDS))

    def mark(self, name: str, include_cuda: bool = True) -> None:
        """Set a mark in the calling thread; in a CUDA run also on the GPU."""
        if self.config.state == ProfilerState.NVTX:
            cuda_stubs().mark(name)
        elif self.config.records_events:
            event_id = _native.mark(name)
            if include_cuda and self.config.state == ProfilerState.CUDA and cuda_stubs().enabled():
                self.cuda_times.record(EventKind.MARK, event_id)

    def mark_start(self) -> None:
        """The mark that times are relative to. It is kept beside the store, which drops the oldest events first."""
        self._start_mark = LegacyEvent(
            EventKind.MARK, START_PROFILE, _native.current_thread_id(), cpu_ns=time.time_ns()
        )
        self.mark(START_PROFILE, include_cuda=False)

    def consolidate(self) -> ThreadEventLists:
        """The events of every thread since the last time, then those that were added. The run forgets them.

        A range that is open stays until it has ended, or the run has.
        """
        process_session().flush(self._capture, STOP_SECONDS)
        rows = merged(self._store.take())
        remote, self.remote_events = self.remote_events, []
        lists = event_lists(rows, self.cuda_times, self.config)
        found: list[MutableSequence[LegacyEvent]] = [*self._lost_start(), *lists, *remote]
        return ThreadEventLists(
            found, partial(key_averages, rows), process_session().lost(self._capture)
        )

    def _lost_start(self) -> list[list[LegacyEvent]]:
        """The start mark if the store lost it: older events were dropped, or this is a forked child, which begins empty."""
        mark, self._start_mark = self._start_mark, None
        dropped = self._store.dropped
        if dropped:
            log.warning(
                "the profiler kept its newest %d events; %d older ones were dropped",
                MAX_EVENTS,
                dropped,
            )
        return [[mark]] if mark is not None and (dropped or os.getpid() != self._pid) else []


# --- in the calling thread

MEMORY_OWNER = "legacy profiler"


def enable_profiler_legacy(config: ProfilerConfig) -> None:
    """Start a run in the calling thread; a ProfilerError if one runs there, for Kineto, and for NVTX without CUDA."""
    if config.state == ProfilerState.NVTX and not cuda_stubs().enabled():
        raise ProfilerError(
            "Can't use NVTX profiler - PyTorch has no CUDA here; pass ProfilerState.CPU instead"
        )
    if config.state == ProfilerState.KINETO:
        raise ProfilerError(
            "the legacy profiler can't use Kineto; pass another state, or use torch.profiler instead"
        )
    if debug_info_get(DebugInfoKind.PROFILER_STATE) is not None:
        raise ProfilerError("Profiler is already enabled on this thread; disable it first")
    run = ProfilerRun(config)
    try:
        run.start()
        debug_info_push(DebugInfoKind.PROFILER_STATE, run)
        run.callback_handle = add_cuda_callback(
            config, partial(_times_if_running, weakref.ref(run))
        )
        run.mark_start()
    except BaseException:
        if debug_info_get(DebugInfoKind.PROFILER_STATE) is run:
            debug_info_pop(DebugInfoKind.PROFILER_STATE)
        run.stop()
        raise


def _times_if_running(reference: weakref.ref[ProfilerRun]) -> CudaTimes | None:
    """The run's times, unless it is over or another one shadows it. PyTorch's own threads have no debug info of ours."""
    run = reference()
    shadow = debug_info_get(DebugInfoKind.PROFILER_STATE)
    return run.cuda_times if run is not None and not run.over and shadow in (None, run) else None


def disable_profiler_legacy(options: ProfilerDisableOptions | None = None) -> ThreadEventLists:
    """End the calling thread's run; with ``options`` only read it, or only leave it to others.

    Returns the events of every thread that took part; none if they weren't asked for, and for NVTX. A ProfilerError if no run
    is in this thread.
    """
    options = options or ProfilerDisableOptions()
    run = _innermost_run(options)
    consolidates = options.consolidate and run.config.records_events
    if consolidates:
        run.mark(STOP_PROFILE, include_cuda=False)
    if (
        options.cleanup_tls_state
    ):  # if nobody reads the run here, it goes on in the threads that got it from this one
        if consolidates:
            run.stop()
        debug_info_pop(DebugInfoKind.PROFILER_STATE)
        remove_callback(run.callback_handle)
    else:
        run.callback_handle = INVALID_CALLBACK_HANDLE  # as in PyTorch, it stays in this thread, also after a later cleanup
    return run.consolidate() if consolidates else ThreadEventLists()


class TLSLegacyProfilerGuard:
    """``with TLSLegacyProfilerGuard(config, result):`` profiles the block in this thread, and hands ``result`` its events.

    What ``result`` raises is logged and goes no further. ``options`` say how the run ends.
    """

    def __init__(
        self,
        config: ProfilerConfig,
        result: Callable[[ThreadEventLists], object] | None = None,
        options: ProfilerDisableOptions | None = None,
    ) -> None:
        self._config, self._result, self._options = config, result, options

    def __enter__(self) -> TLSLegacyProfilerGuard:
        enable_profiler_legacy(self._config)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lists = disable_profiler_legacy(self._options)
        if self._result is None:
            return
        try:
            self._result(lists)
        except Exception:
            log.exception("the function that is given a profiler's events failed")


def profiler_enabled() -> bool:
    """Whether a profiler runs in the calling thread."""
    run = _current_run()
    return run is not None and not run.config.disabled


def profiler_config() -> ProfilerConfig:
    """The config of the calling thread's run (source: ``getProfilerConfig``); a ProfilerError if there is none."""
    run = _current_run()
    if run is None:
        raise ProfilerError(
            "Tried to access profiler config, but profiler is not enabled; call enable_profiler_legacy first"
        )
    return run.config


def profiler_type() -> ActiveProfilerType:
    """The kind of our profiler that runs in the calling thread (source: ``profilerType``)."""
    run = _current_run()
    return ActiveProfilerType.LEGACY if run is not None else ActiveProfilerType.NONE


def mark(name: str, include_cuda: bool = True) -> None:
    """Set a mark now. Does nothing if no profiler runs in the calling thread."""
    run = _current_run()
    if run is not None:
        run.mark(name, include_cuda)


def _no_mark(name: str, include_cuda: bool = True) -> None:
    """The stand-in for ``mark`` in compiled code."""


def add_event_list(events: Iterable[LegacyEvent]) -> None:
    """Add events of another process to the run of the calling thread; a ProfilerError if there is none."""
    run = _current_run()
    if run is None:
        raise ProfilerError(
            "Profiler must be enabled; call enable_profiler_legacy in this thread first"
        )
    run.remote_events.append(list(events))


def _current_run() -> ProfilerRun | None:
    info = debug_info_get(DebugInfoKind.PROFILER_STATE)
    return info if isinstance(info, ProfilerRun) else None


def _innermost_run(options: ProfilerDisableOptions) -> ProfilerRun:
    run = _current_run()
    if run is None:
        raise ProfilerError(
            "Can't disable profiler when it's not running; call enable_profiler_legacy in this thread first"
        )
    debug_info_peek(
        DebugInfoKind.PROFILER_STATE
    )  # an error if other debug info was pushed since and isn't popped yet
    if run.config.disabled:
        if options.cleanup_tls_state:
            debug_info_pop(DebugInfoKind.PROFILER_STATE)
        raise ProfilerError(
            "Can't disable profiler when it's not running; its state was ProfilerState.DISABLED"
        )
    return run


def _mark_rows_as(info: object) -> None:
    """Mark the calling thread's rows as those of the run ``info`` from now on."""
    run = info if isinstance(info, ProfilerRun) and info.config.records_events else None
    number = run.number if run is not None else 0
    _native.set_profiler(number)
    set_profiler(number)
    if run is not None and run.config.profile_memory:
        profilers.keep_memory(MEMORY_OWNER)
    else:
        profilers.release_memory(MEMORY_OWNER)


on_profiler_state(_mark_rows_as)


# The recorder of a forked child starts empty.
around_forks(
    Order.THREAD_STATE, in_child=lambda: _mark_rows_as(debug_info_get(DebugInfoKind.PROFILER_STATE))
)
trace_instead(mark, _no_mark)


# --- the callback of a CUDA run or an NVTX run


NOT_TIMED = frozenset(
    f"aten::{name}"
    for name in {
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
    }
    | {"squeeze", "unsqueeze", "slice", "_unsafe_view", "size"}
)
"""Operators that launch nothing on a GPU, so that timing them would only cost."""


def add_cuda_callback(config: ProfilerConfig, living: Callable[[], CudaTimes | None]) -> int:
    """Time the calling thread's ranges on the GPU, or show them to NVIDIA's tools, if a run asks for it.

    The callback goes along with thread-local state. If the run is disabled without cleanup, it stays and does nothing.
    ``living`` gives the run's times, and None if it is over, or another run shadows it. Returns the callback's handle.
    """

    def time_begin(fn: Any) -> bool:
        times = living()
        if times is None or fn.name() in NOT_TIMED:
            return False
        times.record(EventKind.PUSH_RANGE, fn.handle())
        return True

    def time_end(fn: Any, timed: bool) -> None:
        times = living()
        if times is not None and timed:
            times.record(EventKind.POP_RANGE, fn.handle())

    def push_range(fn: Any) -> bool:
        if living() is None:
            return False
        cuda_stubs().range_push(
            nvtx_text(
                fn.name(), fn.seq_nr(), _shapes(fn.inputs()) if config.report_input_shapes else []
            )
        )
        return True

    def pop_range(_fn: Any, pushed: bool) -> None:
        if pushed:
            cuda_stubs().range_pop()

    if config.state == ProfilerState.NVTX:
        return add_thread_local_callback(
            RecordFunctionCallback(push_range, pop_range).needs_inputs(config.report_input_shapes)
        )
    if config.state != ProfilerState.CUDA:
        return INVALID_CALLBACK_HANDLE
    if not cuda_stubs().enabled():
        log.warning("CUDA is not available; ranges are timed on the CPU alone")
        return INVALID_CALLBACK_HANDLE
    return add_thread_local_callback(RecordFunctionCallback(time_begin, time_end).needs_ids(True))


def nvtx_text(name: str, sequence_nr: int, shapes: list[list[int]]) -> str:
    """A range's text for NVIDIA's tools: ``aten::add, seq = 3, sizes = [[2, 3], []]`` (source: ``getNvtxStr``)."""
    text = f"{name}, seq = {sequence_nr}" if sequence_nr >= 0 else name
    return f"{text}, sizes = {shapes}" if shapes else text


def _shapes(inputs: Iterable[Any]) -> list[list[int]]:
    return [[int(size) for size in getattr(value, "shape", ())] for value in inputs]
