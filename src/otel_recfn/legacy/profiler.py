"""Enables and disables the legacy profiler in the calling thread.

Source: torch/csrc/autograd/profiler_legacy.cpp. A run belongs to a thread and to the work that the thread launches meanwhile:
it is debug info (slot PROFILER_STATE), which goes where thread-local state goes, and is shadowed by what is pushed above it.

    enable     push the run as debug info ► the recorder marks this thread's rows as the run's ► __start_profile
    disable    __stop_profile ► pop ► the rows as events, in lists per thread
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import TracebackType

from otel_recfn.callbacks.registry import INVALID_CALLBACK_HANDLE, remove_callback
from otel_recfn.callbacks.thread_locals import (
    DebugInfoKind,
    debug_info_get,
    debug_info_peek,
    debug_info_pop,
    debug_info_push,
    on_profiler_state,
)
from otel_recfn.legacy.config import STOP_PROFILE, ActiveProfilerType, ProfilerConfig, ProfilerDisableOptions, ProfilerState
from otel_recfn.legacy.cuda import cuda_stubs
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.run import ProfilerRun, add_cuda_callback
from otel_recfn.legacy.thread_events import ThreadEventLists
from otel_recfn.model.errors import ProfilerError
from otel_recfn.pytorch.compiling import trace_instead
from otel_recfn.pytorch.observer import set_profiler
from otel_recfn.pytorch.thread_memory import thread_memory
from otel_recfn.recording.recorder import recorder
from otel_recfn.support.forks import Order, around_forks

log = logging.getLogger("otel_recfn")

MEMORY_OWNER = "legacy profiler"
DEFAULT_OPTIONS = ProfilerDisableOptions()


def enable_profiler_legacy(config: ProfilerConfig) -> None:
    """Start a run in the calling thread.

    Raises:
        ProfilerError: one runs in this thread, Kineto was asked for, or NVTX without CUDA.
    """
    if config.state == ProfilerState.NVTX and not cuda_stubs().enabled():
        raise ProfilerError("Can't use NVTX profiler - PyTorch has no CUDA here; pass ProfilerState.CPU instead")
    if config.state == ProfilerState.KINETO:
        raise ProfilerError("the legacy profiler can't use Kineto; pass another state, or use torch.profiler instead")
    if debug_info_get(DebugInfoKind.PROFILER_STATE) is not None:
        raise ProfilerError("Profiler is already enabled on this thread; disable it first")
    run = ProfilerRun(config)
    try:
        run.start()
        debug_info_push(DebugInfoKind.PROFILER_STATE, run)
        run.callback_handle = add_cuda_callback(run)
        run.mark_start()
    except BaseException:
        if debug_info_get(DebugInfoKind.PROFILER_STATE) is run:
            debug_info_pop(DebugInfoKind.PROFILER_STATE)
        run.stop()
        raise


def disable_profiler_legacy(options: ProfilerDisableOptions | None = None) -> ThreadEventLists:
    """End the calling thread's run, or with ``options`` only read it, or only leave it to others.

    Returns:
        The events of every thread that took part; none where they weren't asked for, and for NVTX.

    Raises:
        ProfilerError: none runs in this thread.
    """
    options = options or DEFAULT_OPTIONS
    run = _innermost_run(options)
    consolidates = options.consolidate and run.config.records_events
    if consolidates:
        run.mark(STOP_PROFILE, include_cuda=False)
    if options.cleanup_tls_state:
        _leave(run, stop=consolidates)
    else:
        run.callback_handle = INVALID_CALLBACK_HANDLE  # as in PyTorch, it stays in this thread, also after a later cleanup
    return run.consolidate() if consolidates else ThreadEventLists()


class TLSLegacyProfilerGuard:
    """``with TLSLegacyProfilerGuard(config, result):`` profiles the block in this thread, and hands ``result`` its events.

    Args:
        config: what is recorded.
        result: called with the events of each thread, after the block. What it raises is logged and goes no further.
        options: how the run ends.
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
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
    """What the calling thread's run was asked for (source: ``getProfilerConfig``).

    Raises:
        ProfilerError: none runs in this thread.
    """
    run = _current_run()
    if run is None:
        raise ProfilerError("Tried to access profiler config, but profiler is not enabled; call enable_profiler_legacy first")
    return run.config


def profiler_type() -> ActiveProfilerType:
    """Which of our profilers runs in the calling thread (source: ``profilerType``)."""
    run = _current_run()
    return run.profiler_type if run is not None else ActiveProfilerType.NONE


def mark(name: str, include_cuda: bool = True) -> None:
    """Something happens now. Nothing where no profiler runs in the calling thread."""
    run = _current_run()
    if run is not None:
        run.mark(name, include_cuda)


def _no_mark(name: str, include_cuda: bool = True) -> None:
    """What stands for ``mark`` in compiled code."""


def add_event_list(events: Iterable[LegacyEvent]) -> None:
    """Add events of another process to the run of the calling thread.

    Raises:
        ProfilerError: none runs in this thread.
    """
    run = _current_run()
    if run is None:
        raise ProfilerError("Profiler must be enabled; call enable_profiler_legacy in this thread first")
    run.add_remote_events(events)


def _current_run() -> ProfilerRun | None:
    info = debug_info_get(DebugInfoKind.PROFILER_STATE)
    return info if isinstance(info, ProfilerRun) else None


def _innermost_run(options: ProfilerDisableOptions) -> ProfilerRun:
    run = _current_run()
    if run is None:
        raise ProfilerError("Can't disable profiler when it's not running; call enable_profiler_legacy in this thread first")
    debug_info_peek(DebugInfoKind.PROFILER_STATE)  # refuses where other debug info was pushed since and isn't popped yet
    if run.config.disabled:
        if options.cleanup_tls_state:
            debug_info_pop(DebugInfoKind.PROFILER_STATE)
        raise ProfilerError("Can't disable profiler when it's not running; its state was ProfilerState.DISABLED")
    return run


def _leave(run: ProfilerRun, *, stop: bool) -> None:
    """Take the run out of the calling thread. Where nobody read it yet, it goes on in the threads that got it from this one."""
    if stop:
        run.stop()
    debug_info_pop(DebugInfoKind.PROFILER_STATE)
    remove_callback(run.callback_handle)


def _belong_to(info: object) -> None:
    """From here on the calling thread's rows are those of the run ``info``."""
    run = info if isinstance(info, ProfilerRun) and info.config.records_events else None
    number = run.number if run is not None else 0
    recorder.set_profiler(number)
    set_profiler(number)
    if run is not None and run.config.profile_memory:
        thread_memory.keep(MEMORY_OWNER)
    else:
        thread_memory.give_up(MEMORY_OWNER)


on_profiler_state(_belong_to)


def _belong_again() -> None:
    """A forked child's recorder starts empty: it has to be told."""
    info = debug_info_get(DebugInfoKind.PROFILER_STATE)
    if info is not None:
        _belong_to(info)


around_forks(Order.THREAD_STATE, in_child=_belong_again)
trace_instead(mark, _no_mark)
