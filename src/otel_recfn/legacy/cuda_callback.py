"""The callback of a run that times ranges on the GPU, or shows them to NVIDIA's tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from otel_recfn.callbacks.callback import INVALID_CALLBACK_HANDLE, RecordFunctionCallback
from otel_recfn.callbacks.registry import add_thread_local_callback
from otel_recfn.legacy.config import ProfilerConfig, ProfilerState
from otel_recfn.legacy.cuda import CudaTimes, cuda_stubs
from otel_recfn.legacy.kinds import EventKind
from otel_recfn.support.logs import log

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
        "squeeze",
        "unsqueeze",
        "slice",
        "_unsafe_view",
        "size",
    }
)
"""Operators that launch nothing on a GPU, so that timing them would only cost."""


def add_cuda_callback(config: ProfilerConfig, living: Callable[[], CudaTimes | None]) -> int:
    """Time the calling thread's ranges on the GPU, or show them to NVIDIA's tools, if a run asks
    for it.

    The callback goes along with thread-local state. If the run is disabled without cleanup, it
    stays and does nothing.

    Args:
        config: that of the run.
        living: gives the run's times; None if it is over, or another run shadows it.

    Returns:
        The callback's handle.
    """
    if config.state == ProfilerState.NVTX:
        return add_thread_local_callback(_nvtx_callback(config, living))
    if config.state != ProfilerState.CUDA:
        return INVALID_CALLBACK_HANDLE
    if not cuda_stubs().enabled():
        log.warning("CUDA is not available; ranges are timed on the CPU alone")
        return INVALID_CALLBACK_HANDLE
    return add_thread_local_callback(_timing_callback(living))


def _timing_callback(living: Callable[[], CudaTimes | None]) -> RecordFunctionCallback:
    """A callback that times ranges on the GPU."""

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

    callback: RecordFunctionCallback = RecordFunctionCallback(time_begin, time_end).needs_ids(True)
    return callback


def _nvtx_callback(
    config: ProfilerConfig, living: Callable[[], CudaTimes | None]
) -> RecordFunctionCallback:
    """A callback that shows ranges to NVIDIA's tools."""

    def push_range(fn: Any) -> bool:
        if living() is None:
            return False
        shapes = _shapes(fn.inputs()) if config.report_input_shapes else []
        cuda_stubs().range_push(nvtx_text(fn.name(), fn.seq_nr(), shapes))
        return True

    def pop_range(_fn: Any, pushed: bool) -> None:
        if pushed:
            cuda_stubs().range_pop()

    callback: RecordFunctionCallback = RecordFunctionCallback(push_range, pop_range).needs_inputs(
        config.report_input_shapes
    )
    return callback


def nvtx_text(name: str, sequence_nr: int, shapes: list[list[int]]) -> str:
    """A range's text for NVIDIA's tools: ``aten::add, seq = 3, sizes = [[2, 3], []]`` (source:
    ``getNvtxStr``).
    """
    text = f"{name}, seq = {sequence_nr}" if sequence_nr >= 0 else name
    return f"{text}, sizes = {shapes}" if shapes else text


def _shapes(inputs: Iterable[Any]) -> list[list[int]]:
    return [[int(size) for size in getattr(value, "shape", ())] for value in inputs]
