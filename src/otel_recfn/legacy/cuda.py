"""What the profiler asks of CUDA: events that time the GPU, and NVTX ranges.

Source: ``ProfilerStubs`` in torch/csrc/profiler/stubs/base.h; a build of PyTorch without CUDA has none there either.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple, Protocol

MICROSECONDS_PER_MILLISECOND = 1000.0


class CudaEvent(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Record the event on the current stream: it happens when the stream reaches it."""

    def synchronize(self) -> None:
        """Wait until it has happened."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to a later one."""


class CudaRecord(NamedTuple):
    """A moment on a GPU."""

    device: int
    event: CudaEvent
    cpu_ns: int
    """When it was asked for, in Unix nanoseconds."""


class CudaStubs(Protocol):
    """CUDA, as far as the profiler uses it."""

    def enabled(self) -> bool:
        """Whether PyTorch has CUDA: the other methods may be called."""

    def record(self) -> CudaRecord:
        """An event on the current stream of the current device."""

    def elapsed_us(self, begin: CudaEvent, end: CudaEvent) -> float:
        """Microseconds between two events; waits for both."""

    def mark(self, name: str) -> None:
        """An NVTX mark."""

    def range_push(self, name: str) -> None:
        """An NVTX range begins in this thread."""

    def range_pop(self) -> None:
        """The innermost NVTX range of this thread ends."""


class TorchCuda:
    """CUDA by way of PyTorch, where the program has imported it."""

    def enabled(self) -> bool:
        """Whether there is a device to time."""
        return "torch" in sys.modules and bool(_cuda().is_available())

    def record(self) -> CudaRecord:
        """An event on the current stream of the current device."""
        cuda = _cuda()
        device, event, now = cuda.current_device(), cuda.Event(enable_timing=True), time.time_ns()
        event.record()
        return CudaRecord(device, event, now)

    def elapsed_us(self, begin: CudaEvent, end: CudaEvent) -> float:
        """Microseconds between two events; waits for both."""
        begin.synchronize()
        end.synchronize()
        return begin.elapsed_time(end) * MICROSECONDS_PER_MILLISECOND

    def mark(self, name: str) -> None:
        """An NVTX mark."""
        _cuda().nvtx.mark(name)

    def range_push(self, name: str) -> None:
        """An NVTX range begins in this thread."""
        _cuda().nvtx.range_push(name)

    def range_pop(self) -> None:
        """The innermost NVTX range of this thread ends."""
        _cuda().nvtx.range_pop()


def _cuda() -> Any:
    return sys.modules["torch"].cuda


_stubs: CudaStubs = TorchCuda()


def cuda_stubs() -> CudaStubs:
    """What stands for CUDA now."""
    return _stubs


def register_cuda_methods(stubs: CudaStubs) -> CudaStubs:
    """Put something else in CUDA's place, as another device's plugin or a test does. Returns what was there."""
    global _stubs
    replaced, _stubs = _stubs, stubs
    return replaced
