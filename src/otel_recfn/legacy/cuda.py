"""What the profiler asks of CUDA: events that time the GPU, and NVTX ranges.

Source: ``ProfilerStubs`` in torch/csrc/profiler/stubs/base.h; a build of PyTorch without CUDA has none there either.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple, Protocol

from otel_recfn.legacy.errors import ProfilerError
from otel_recfn.pytorch.gpu_times import GpuMoment, gpu_elapsed_us, gpu_time
from otel_recfn.pytorch.observer import loaded_library

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
    event: Any
    """A CudaEvent, or what else the stubs' ``elapsed_us`` takes."""
    cpu_ns: int
    """When it was asked for, in Unix nanoseconds."""


class CudaStubs(Protocol):
    """CUDA, as far as the profiler uses it."""

    def enabled(self) -> bool:
        """Whether PyTorch has CUDA: the other methods may be called."""

    def record(self) -> CudaRecord:
        """An event on the current stream of the current device."""

    def elapsed_us(self, begin: Any, end: Any) -> float:
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
        library = loaded_library()
        timed = gpu_time(library) if library is not None else None
        if timed is not None:  # as changes of memory are timed, so that all can be compared
            return CudaRecord(timed.device, timed.moment, timed.cpu_ns)
        cuda = _cuda()
        device, event, now = cuda.current_device(), cuda.Event(enable_timing=True), time.time_ns()
        event.record()
        return CudaRecord(device, event, now)

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """Microseconds between two events; waits for both. Not a number where CUDA fails.

        Raises:
            ProfilerError: one of them was recorded before PyTorch's operators were observed, in another way.
        """
        library = loaded_library()
        if isinstance(begin, GpuMoment) and isinstance(end, GpuMoment) and library is not None:
            return gpu_elapsed_us(library, begin, end)
        if isinstance(begin, GpuMoment) or isinstance(end, GpuMoment):
            raise ProfilerError("the events were timed in different ways; record both of them while a run is on")
        begin.synchronize()
        end.synchronize()
        elapsed_ms: float = begin.elapsed_time(end)
        return elapsed_ms * MICROSECONDS_PER_MILLISECOND

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
