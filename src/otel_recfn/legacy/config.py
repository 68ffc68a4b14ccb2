"""The configuration of a legacy run, with PyTorch's fields, names and numbers.

Source: ``ProfilerConfig`` in torch/csrc/autograd/profiler_legacy.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.value_lists import have_types
from otel_recfn.model.events import Extra

NUM_VALUES = 3
"""The number of values of a config that PyTorch sends: state, shapes, memory."""
OWN_VALUES = (bool, bool, bool, str)
"""The types of the values that we send after them: stacks, FLOPs, modules, the trace id."""
START_PROFILE = "__start_profile"
STOP_PROFILE = "__stop_profile"
"""The marks at the begin and the end of a run."""


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
    """The profiler that runs in a thread, with PyTorch's values
    (``torch::profiler::impl::ActiveProfilerType``).
    """

    NONE = 0
    LEGACY = 1
    KINETO = 2
    NVTX = 3
    ITT = 4
    PRIVATEUSE1 = 5


@dataclass(frozen=True)
class ProfilerConfig:
    """The kinds of values that a run records.

    Attributes:
        state: what it observes with.
        report_input_shapes: shapes of operators' inputs.
        profile_memory: what PyTorch allocates and frees in the threads that take part. While a
            torch.profiler is active in one of them, PyTorch reports that thread's memory to it
            alone.
        with_stack: Python's call stack, or TorchScript's, of each range but autograd's.
        with_flops: floating point operations, with or without shapes.
        with_modules, experimental_config, trace_id: PyTorch's other fields, which its legacy
            profiler has no use for either.
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
        """The values that are sent to another process, without ``experimental_config``.

        First come PyTorch's (``ProfilerConfig::toIValue``).
        """
        torchs_fields = [int(self.state), self.report_input_shapes, self.profile_memory]
        return [*torchs_fields, self.with_stack, self.with_flops, self.with_modules, self.trace_id]

    @classmethod
    def from_value_list(cls, values: Any) -> ProfilerConfig:
        """The config from the values of ``to_value_list``, or from PyTorch's
        (``ProfilerConfig::fromIValue``).
        """
        if not isinstance(values, list) or len(values) < NUM_VALUES:
            raise ProfilerError(
                f"Expected a list of {NUM_VALUES} values, got {values!r}; pass what to_value_list"
                " gave"
            )
        state, shapes, memory = values[:NUM_VALUES]
        has_types = have_types([state, shapes, memory], [int, bool, bool])
        if not has_types or state not in {*ProfilerState}:
            raise ProfilerError(f"Expected a ProfilerState's number and two bools, got {values!r}")
        own = values[NUM_VALUES : NUM_VALUES + len(OWN_VALUES)]
        stack, flops, modules, trace_id = (
            own if have_types(own, OWN_VALUES) else (False, False, False, "")
        )
        return cls(ProfilerState(state), shapes, memory, stack, flops, modules, trace_id=trace_id)

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
        operator_extras = (
            Extra.SHAPES * shapes | Extra.STACK * self.with_stack | Extra.FLOPS * self.with_flops
        )
        return Extra(operator_extras | Extra.MEMORY * self.profile_memory)


@dataclass(frozen=True)
class ProfilerDisableOptions:
    """The way in which ``disable_profiler_legacy`` ends a run.

    Attributes:
        cleanup_tls_state: take the run out of the calling thread; otherwise it continues there.
        consolidate: return the events that were recorded; otherwise they stay until another thread
            of the run consolidates.
    """

    cleanup_tls_state: bool = True
    consolidate: bool = True
