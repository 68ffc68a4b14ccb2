"""Changes of memory have times on the GPU, taken as PyTorch reports them, while a CUDA run asks for memory."""

from __future__ import annotations

import weakref

from otel_recfn.legacy.cuda import CudaRecord, TorchCuda, cuda_stubs
from otel_recfn.legacy.cuda_times import CudaTimes
from otel_recfn.legacy.event_kind import EventKind
from otel_recfn.pytorch.gpu_times import take_memory_times
from otel_recfn.pytorch.observer import loaded_library

_timed: dict[int, weakref.ref[CudaTimes]] = {}
"""Of the runs that ask for it, by identity."""


def begin_timing(times: CudaTimes) -> None:
    """Note there when memory changes, from now on. Nothing where that can't be taken natively."""
    library = loaded_library()
    if library is None or not isinstance(cuda_stubs(), TorchCuda):
        return
    _timed[id(times)] = weakref.ref(times)
    weakref.finalize(times, _leave, id(times)).atexit = False
    library.recfn_observer_time_memory(1)


def end_timing(times: CudaTimes) -> None:
    """The run is over."""
    if id(times) in _timed:
        collect()
        _leave(id(times))


def collect() -> None:
    """Give the runs what was taken since the last time."""
    library = loaded_library()
    if library is None or not _timed:
        return
    for event_id, timed in take_memory_times(library).items():
        record = CudaRecord(timed.device, timed.moment, timed.cpu_ns)
        for each in list(_timed.values()):
            if (times := each()) is not None:
                times.put(EventKind.MEMORY_ALLOC, event_id, record)


def _leave(identity: int) -> None:
    library = loaded_library()
    if _timed.pop(identity, None) is not None and not _timed and library is not None:
        library.recfn_observer_time_memory(0)
