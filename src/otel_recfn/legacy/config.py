"""What a profiler run records, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from otel_recfn.model.events import Extra


class ProfilerState(IntEnum):
    """What a run observes with. The values are PyTorch's (``torch::profiler::impl::ProfilerState``)."""

    DISABLED = 0
    CPU = 1
    CUDA = 2
    """Also times ranges on the GPU, with a CUDA event at begin and end."""
    NVTX = 3
    """Records nothing, but announces ranges to NVIDIA's tools."""
    ITT = 4
    PRIVATEUSE1 = 5
    KINETO = 6
    KINETO_GPU_FALLBACK = 7
    KINETO_PRIVATEUSE1_FALLBACK = 8
    KINETO_PRIVATEUSE1 = 9
    KINETO_ONDEMAND = 10
    NUM_PROFILER_STATES = 11


class ActiveProfilerType(IntEnum):
    """Which profiler runs in a thread. The values are PyTorch's (``torch::profiler::impl::ActiveProfilerType``)."""

    NONE = 0
    LEGACY = 1
    KINETO = 2
    NVTX = 3
    ITT = 4
    PRIVATEUSE1 = 5


@dataclass(frozen=True)
class ProfilerConfig:
    """What a run records.

    Attributes:
        state: what it observes with.
        report_input_shapes: shapes of operators' inputs.
        profile_memory: what PyTorch allocates and frees in the threads that take part. While a torch.profiler is active in one
            of them, PyTorch reports that thread's memory to it alone.
        with_stack: Python's call stack, or TorchScript's, of each range but autograd's.
        with_flops: floating point operations, with or without shapes.
    """

    state: ProfilerState
    report_input_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False

    @property
    def disabled(self) -> bool:
        """Whether such a run records nothing at all, and counts as not running."""
        return self.state == ProfilerState.DISABLED

    @property
    def records_events(self) -> bool:
        """Whether such a run has events in the end: NVTX ranges go to NVIDIA's tools alone."""
        return self.state not in (ProfilerState.DISABLED, ProfilerState.NVTX)

    @property
    def extras(self) -> Extra:
        """What the recorder is to record for it."""
        wanted = {
            Extra.SHAPES: self.report_input_shapes,
            Extra.MEMORY: self.profile_memory,
            Extra.STACK: self.with_stack,
            Extra.FLOPS: self.with_flops,
        }
        extras = Extra.NONE
        for extra, asked in wanted.items():
            extras |= extra if asked else Extra.NONE
        return extras


@dataclass(frozen=True)
class ProfilerDisableOptions:
    """How ``disable_profiler_legacy`` ends a run.

    Attributes:
        cleanup_tls_state: take the run out of the calling thread; else it goes on there.
        consolidate: give the events that were recorded; else they stay for whoever consolidates in another thread of the run.
    """

    cleanup_tls_state: bool = True
    consolidate: bool = True
