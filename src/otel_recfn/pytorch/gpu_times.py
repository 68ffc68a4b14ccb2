"""Moments on a GPU, taken as PyTorch's own legacy profiler takes them: natively, and so also in a report of memory."""

from __future__ import annotations

import ctypes
import weakref
from typing import NamedTuple


class GpuMoment:
    """A moment that the observer holds; it is given back with this object."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self.handle = handle
        weakref.finalize(self, library.recfn_observer_forget_gpu_time, handle).atexit = False


class Timed(NamedTuple):
    """When something happened."""

    device: int
    moment: GpuMoment
    cpu_ns: int
    """Unix nanoseconds; 0 where it isn't told."""


def declare(library: ctypes.CDLL) -> None:
    """Say what the functions take and return."""
    device, moment = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
    library.recfn_observer_gpu_time.argtypes = [device, ctypes.POINTER(ctypes.c_int64)]
    library.recfn_observer_gpu_time.restype = moment
    library.recfn_observer_gpu_elapsed_us.argtypes = [moment, moment]
    library.recfn_observer_gpu_elapsed_us.restype = ctypes.c_double
    library.recfn_observer_forget_gpu_time.argtypes = [moment]
    library.recfn_observer_forget_gpu_time.restype = None
    library.recfn_observer_time_memory.argtypes = [ctypes.c_int]
    library.recfn_observer_time_memory.restype = None
    library.recfn_observer_take_memory_time.argtypes = [ctypes.POINTER(ctypes.c_uint64), device]
    library.recfn_observer_take_memory_time.restype = moment


def gpu_time(library: ctypes.CDLL) -> Timed | None:
    """Now, on the current stream of the current GPU; None where there is none."""
    device, cpu_ns = ctypes.c_int(-1), ctypes.c_int64()
    handle = library.recfn_observer_gpu_time(device, cpu_ns)
    return Timed(device.value, GpuMoment(library, handle), cpu_ns.value) if handle else None


def gpu_elapsed_us(library: ctypes.CDLL, begin: GpuMoment, end: GpuMoment) -> float:
    """Microseconds between two moments; waits for both. Not a number where CUDA fails."""
    elapsed: float = library.recfn_observer_gpu_elapsed_us(begin.handle, end.handle)
    return elapsed


def take_memory_times(library: ctypes.CDLL) -> dict[int, Timed]:
    """When memory changed, by event id, as far as nobody has taken it yet."""
    taken: dict[int, Timed] = {}
    event_id, device = ctypes.c_uint64(), ctypes.c_int(-1)
    while handle := library.recfn_observer_take_memory_time(event_id, device):
        taken[event_id.value] = Timed(device.value, GpuMoment(library, handle), 0)
    return taken
