"""Times ranges on the GPU, or announces them to NVIDIA's tools, while a run asks for that: a thread-local callback.

The thread-local state carries it to work that the thread launches. If a run is disabled without cleanup, the callback stays and
does nothing.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from otel_recfn.legacy.config import ProfilerState
from otel_recfn.legacy.cuda import cuda_stubs
from otel_recfn.legacy.cuda_memory import begin_timing
from otel_recfn.legacy.event_kind import EventKind
from otel_recfn.runtime.callback import RecordFunctionCallback
from otel_recfn.runtime.callbacks import INVALID_CALLBACK_HANDLE, add_thread_local_callback
from otel_recfn.runtime.debug_info import DebugInfoKind, debug_info_get

if TYPE_CHECKING:
    from otel_recfn.legacy.run import ProfilerRun

log = logging.getLogger("otel_recfn")

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
    """Observe the calling thread's ranges for a run, if it needs that. Returns the callback's handle, or the invalid one."""
    if run.config.state == ProfilerState.NVTX:
        ranges = _NvtxRanges(run)
        needs_inputs = run.config.report_input_shapes
        return add_thread_local_callback(RecordFunctionCallback(ranges.start, ranges.end).needs_inputs(needs_inputs))
    if run.config.state != ProfilerState.CUDA:
        return INVALID_CALLBACK_HANDLE
    if not cuda_stubs().enabled():
        log.warning("CUDA is not available; ranges are timed on the CPU alone")
        return INVALID_CALLBACK_HANDLE
    if run.config.profile_memory:
        begin_timing(run.cuda_times)
    times = _CudaRanges(run)
    return add_thread_local_callback(RecordFunctionCallback(times.start, times.end).needs_ids(True))


class _OfRun:
    """Knows its run as long as that lives."""

    def __init__(self, run: ProfilerRun) -> None:
        self._run = weakref.ref(run)

    def living(self) -> ProfilerRun | None:
        """The run, where it isn't over and no other one shadows it. PyTorch's own threads have no debug info of ours."""
        run = self._run()
        shadow = debug_info_get(DebugInfoKind.PROFILER_STATE)
        return run if run is not None and not run.over and shadow in (None, run) else None


class _CudaRanges(_OfRun):
    def start(self, fn: Any) -> bool:
        run = self.living()
        if run is None or fn.name() in NOT_TIMED:
            return False
        run.cuda_times.record(EventKind.PUSH_RANGE, fn.handle())
        return True

    def end(self, fn: Any, timed: bool) -> None:
        run = self.living()
        if run is not None and timed:
            run.cuda_times.record(EventKind.POP_RANGE, fn.handle())


class _NvtxRanges(_OfRun):
    def start(self, fn: Any) -> bool:
        run = self.living()
        if run is None:
            return False
        shapes = _shapes(fn.inputs()) if run.config.report_input_shapes else []
        cuda_stubs().range_push(nvtx_text(fn.name(), fn.seq_nr(), shapes))
        return True

    def end(self, fn: Any, pushed: bool) -> None:
        if pushed:
            cuda_stubs().range_pop()


def nvtx_text(name: str, sequence_nr: int, shapes: list[list[int]]) -> str:
    """What NVIDIA's tools show: ``aten::add, seq = 3, sizes = [[2, 3], []]`` (source: ``getNvtxStr``)."""
    text = f"{name}, seq = {sequence_nr}" if sequence_nr >= 0 else name
    return f"{text}, sizes = {shapes}" if shapes else text


def _shapes(inputs: Iterable[Any]) -> list[list[int]]:
    return [[int(size) for size in getattr(value, "shape", ())] for value in inputs]
