"""The configuration of a profiler run, the kinds of its events, and its error. Most values and names are PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from otel_recfn.errors import ProfilerError
from otel_recfn.model.events import Extra

NUM_VALUES = 3
"""The values of a config that is sent: state, shapes, memory."""
START_PROFILE = "__start_profile"
STOP_PROFILE = "__stop_profile"
"""The marks at the begin and the end of a run."""


class EventKind(IntEnum):
    """The kind of a legacy event, with PyTorch's values."""

    MARK = 0
    PUSH_RANGE = 1
    POP_RANGE = 2
    MEMORY_ALLOC = 3


class ProfilerState(IntEnum):
    """The observer of a run, with PyTorch's values (``torch::profiler::impl::ProfilerState``)."""

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
    """The profiler that runs in a thread, with PyTorch's values (``torch::profiler::impl::ActiveProfilerType``)."""

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
        with_modules, experimental_config, trace_id: PyTorch's other fields, which its legacy profiler has no use for either.
    """

    state: ProfilerState
    report_input_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    experimental_config: object = None
    trace_id: str = ""

    def to_value_list(self) -> list[Any]:
        """The values that are sent to another process, as in PyTorch (``ProfilerConfig::toIValue``)."""
        return [int(self.state), self.report_input_shapes, self.profile_memory]

    @classmethod
    def from_value_list(cls, values: Any) -> ProfilerConfig:
        """The config from the values of ``to_value_list``; later values are ignored (``ProfilerConfig::fromIValue``)."""
        if not isinstance(values, list) or len(values) < NUM_VALUES:
            raise ProfilerError(f"Expected a list of {NUM_VALUES} values, got {values!r}; pass what to_value_list gave")
        state, shapes, memory = values[:NUM_VALUES]
        if type(state) is not int or state not in {*ProfilerState} or type(shapes) is not bool or type(memory) is not bool:
            raise ProfilerError(f"Expected a ProfilerState's number and two bools, got {values!r}")
        return cls(ProfilerState(state), shapes, memory)

    @property
    def disabled(self) -> bool:
        """Whether such a run records nothing, and counts as not running."""
        return self.state == ProfilerState.DISABLED

    @property
    def records_events(self) -> bool:
        """Whether such a run has events: NVTX ranges go to NVIDIA's tools alone."""
        return self.state not in (ProfilerState.DISABLED, ProfilerState.NVTX)

    @property
    def extras(self) -> Extra:
        """The extras that the recorder records for it."""
        shapes = self.report_input_shapes or self.with_flops  # FLOPs are counted from shapes
        of_operators = Extra.SHAPES * shapes | Extra.STACK * self.with_stack | Extra.FLOPS * self.with_flops
        return Extra(of_operators | Extra.MEMORY * self.profile_memory)


@dataclass(frozen=True)
class ProfilerDisableOptions:
    """The way in which ``disable_profiler_legacy`` ends a run.

    Attributes:
        cleanup_tls_state: take the run out of the calling thread; else it goes on there.
        consolidate: give the events that were recorded; else they stay for whoever consolidates in another thread of the run.
    """

    cleanup_tls_state: bool = True
    consolidate: bool = True
