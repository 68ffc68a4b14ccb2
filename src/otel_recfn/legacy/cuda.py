"""CUDA for the legacy profiler: events that time the GPU, NVTX ranges, and a run's times.

Source: ``ProfilerStubs`` in torch/csrc/profiler/stubs/base.h; a build of PyTorch without CUDA has
none there either.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

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
        device = cuda.current_device()
        event = cuda.Event(enable_timing=True)
        now = time.time_ns()
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

    It has the methods of CudaStubs; ``record`` gives a CudaRecord, and ``elapsed_us`` takes the
    events of two.
    """
    global _stubs
    replaced, _stubs = _stubs, stubs
    return replaced


# --- the times of a run's ranges and marks on a GPU


class CudaTimes:
    """Moments on the GPU, kept until they become events of the run.

    Methods may be called from any thread.

    What comes beyond the ``limit`` that are kept is not timed, as its range wouldn't be kept
    either.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: dict[tuple[int, int], CudaRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def record(self, kind: int, key: int) -> None:
        """Record the current moment for the push or pop of the range with handle ``key``, or for
        the mark with that id.
        """
        if len(self._records) < self._limit:
            self._records[kind, key] = cuda_stubs().record()

    def take(self, kind: int, key: int) -> CudaRecord | None:
        """Remove and return a recorded moment; None if there is none."""
        return self._records.pop((kind, key), None)
