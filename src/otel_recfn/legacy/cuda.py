"""CUDA for the legacy profiler: events that time the GPU, NVTX ranges, a run's times, and the callback that takes them.

Source: ``ProfilerStubs`` in torch/csrc/profiler/stubs/base.h; a build of PyTorch without CUDA has none there either.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import INVALID_CALLBACK_HANDLE, add_thread_local_callback
from otel_recfn.legacy.config import EventKind, ProfilerConfig, ProfilerState

log = logging.getLogger("otel_recfn")

MICROSECONDS_PER_MILLISECOND = 1000.0


class CudaRecord(NamedTuple):
    """A moment on a GPU."""

    device: int
    event: Any
    """The argument of ``elapsed_us``: a ``torch.cuda.Event``."""
    cpu_ns: int
    """The time of the call, in Unix nanoseconds."""


class CudaStubs:
    """The part of CUDA that the profiler uses, through PyTorch, if the program has imported it."""

    def enabled(self) -> bool:
        """Whether there is a device to time."""
        return "torch" in sys.modules and bool(_cuda().is_available())

    def record(self) -> CudaRecord:
        """Record an event on the current stream of the current device."""
        cuda = _cuda()
        device, event, now = cuda.current_device(), cuda.Event(enable_timing=True), time.time_ns()
        event.record()
        return CudaRecord(device, event, now)

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """The microseconds between two events; waits for both."""
        begin.synchronize()
        end.synchronize()
        elapsed_ms: float = begin.elapsed_time(end)
        return elapsed_ms * MICROSECONDS_PER_MILLISECOND

    def mark(self, name: str) -> None:
        """Set an NVTX mark."""
        _cuda().nvtx.mark(name)

    def range_push(self, name: str) -> None:
        """Begin an NVTX range in this thread."""
        _cuda().nvtx.range_push(name)

    def range_pop(self) -> None:
        """End the innermost NVTX range of this thread."""
        _cuda().nvtx.range_pop()


def _cuda() -> Any:
    return sys.modules["torch"].cuda


_stubs: Any = CudaStubs()


def cuda_stubs() -> Any:
    """The stubs in use: the CudaStubs, or what was registered in their place."""
    return _stubs


def register_cuda_methods(stubs: Any) -> Any:
    """Register other stubs, as another device's plugin or a test does. Returns the ones before.

    It has the methods of CudaStubs; ``record`` gives a CudaRecord, and ``elapsed_us`` takes the events of two.
    """
    global _stubs
    replaced, _stubs = _stubs, stubs
    return replaced


# --- the times of a run's ranges and marks on a GPU


class CudaTimes:
    """Moments on the GPU, kept until they become events of the run. Methods may be called from any thread.

    What comes beyond the ``most`` that are kept is not timed, as its range wouldn't be kept either.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: dict[tuple[EventKind, int], CudaRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def record(self, kind: EventKind, key: int) -> None:
        """Record the current moment for the push or pop of the range with handle ``key``, or for the mark with that id."""
        if len(self._records) < self._most:
            self._records[kind, key] = cuda_stubs().record()

    def take(self, kind: EventKind, key: int) -> CudaRecord | None:
        """Remove and return a recorded moment; None if there is none."""
        return self._records.pop((kind, key), None)


# --- the callback of a CUDA run or an NVTX run


NOT_TIMED = frozenset(
    f"aten::{name}"
    for name in {"view", "t", "transpose", "stride", "empty", "empty_like", "empty_strided", "as_strided", "expand", "resize_"}
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
        cuda_stubs().range_push(nvtx_text(fn.name(), fn.seq_nr(), _shapes(fn.inputs()) if config.report_input_shapes else []))
        return True

    def pop_range(_fn: Any, pushed: bool) -> None:
        if pushed:
            cuda_stubs().range_pop()

    if config.state == ProfilerState.NVTX:
        return add_thread_local_callback(RecordFunctionCallback(push_range, pop_range).needs_inputs(config.report_input_shapes))
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
