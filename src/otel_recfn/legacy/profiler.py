"""The legacy profiler: runs, and how they are enabled and disabled in the calling thread.

Source: torch/csrc/autograd/profiler_legacy.cpp. A run belongs to a thread and to the work that the
thread launches meanwhile: it is debug info (slot PROFILER_STATE), which goes where thread-local
state goes, and is shadowed by what is pushed above it. The recorder marks the rows of these threads
with the run's number, and the run is a capture that sees those alone.

    enable     push the run as debug info ► the recorder marks this thread's rows as the run's
               ► __start_profile
    disable    __stop_profile ► pop ► the rows as events, in lists per thread

Whoever enabled a run ends it. What was launched meanwhile can disable it, too: it takes the events
since the last time and leaves the run, which goes on for the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from otel_recfn import _native
from otel_recfn.callbacks.callback import INVALID_CALLBACK_HANDLE
from otel_recfn.callbacks.registry import remove_callback
from otel_recfn.callbacks.thread_locals import (
    DebugInfoKind,
    debug_info_get,
    debug_info_peek,
    debug_info_pop,
    debug_info_push,
    on_profiler_state,
    pushed_here,
)
from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.config import (
    STOP_PROFILE,
    ActiveProfilerType,
    ProfilerConfig,
    ProfilerDisableOptions,
    ProfilerState,
)
from otel_recfn.legacy.cuda import CudaTimes, cuda_stubs
from otel_recfn.legacy.cuda_callback import add_cuda_callback
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.run import ProfilerRun
from otel_recfn.legacy.thread_events import ThreadEventLists
from otel_recfn.pytorch import profilers
from otel_recfn.pytorch.compiling import trace_instead
from otel_recfn.pytorch.observer import set_profiler
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.logs import log

MEMORY_OWNER = "legacy profiler"


def enable_profiler_legacy(config: ProfilerConfig) -> None:
    """Start a run in the calling thread; a ProfilerError if one runs there, for Kineto, and for
    NVTX without CUDA.
    """
    if config.state == ProfilerState.NVTX and not cuda_stubs().enabled():
        raise ProfilerError(
            "Can't use NVTX profiler - PyTorch has no CUDA here; pass ProfilerState.CPU instead"
        )
    if config.state == ProfilerState.KINETO:
        raise ProfilerError(
            "the legacy profiler can't use Kineto; pass another state, or use torch.profiler"
            " instead"
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
    """The run's times, unless it is over or another one shadows it.

    PyTorch's own threads have no debug info of ours.
    """
    run = reference()
    shadow = debug_info_get(DebugInfoKind.PROFILER_STATE)
    return run.cuda_times if run is not None and not run.over and shadow in (None, run) else None


def disable_profiler_legacy(options: ProfilerDisableOptions | None = None) -> ThreadEventLists:
    """End the calling thread's run; with ``options`` only read it, or only leave it to others.

    A thread or task that inherited the run leaves it: it goes on until whoever enabled it ends it.

    Returns the events of every thread that took part; none if they weren't asked for, and for NVTX.
    A ProfilerError if no run is in this thread.
    """
    options = options or ProfilerDisableOptions()
    run = _innermost_run(options)
    consolidates = options.consolidate and run.config.records_events
    if consolidates:
        run.mark(STOP_PROFILE, include_cuda=False)
    # If nobody reads the run here, it goes on in the threads that got it from this one.
    if options.cleanup_tls_state:
        if consolidates and pushed_here(DebugInfoKind.PROFILER_STATE):
            run.stop()
        debug_info_pop(DebugInfoKind.PROFILER_STATE)
        remove_callback(run.callback_handle)
    else:
        # As in PyTorch, it stays in this thread, also after a later cleanup.
        run.callback_handle = INVALID_CALLBACK_HANDLE
    return run.consolidate() if consolidates else ThreadEventLists()


class TLSLegacyProfilerGuard:
    """``with TLSLegacyProfilerGuard(config, result):`` profiles the block in this thread, and calls
    ``result`` with its events.

    An exception of ``result`` is logged and goes no further. ``options`` say how the run ends.
    """

    def __init__(
        self,
        config: ProfilerConfig,
        result: Callable[[ThreadEventLists], object] | None = None,
        options: ProfilerDisableOptions | None = None,
    ) -> None:
        self._config = config
        self._result = result
        self._options = options

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
    """The config of the calling thread's run (source: ``getProfilerConfig``); a ProfilerError if
    there is none.
    """
    run = _current_run()
    if run is None:
        raise ProfilerError(
            "Tried to access profiler config, but profiler is not enabled; call"
            " enable_profiler_legacy first"
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
    """Add events of another process to the run of the calling thread; a ProfilerError if there
    is none.
    """
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
            "Can't disable profiler when it's not running; call enable_profiler_legacy in this"
            " thread first"
        )
    # An error if other debug info was pushed since and isn't popped yet.
    debug_info_peek(DebugInfoKind.PROFILER_STATE)
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
