"""The legacy profiler: runs of its own per thread, their events as pushes and pops.

Source: torch/csrc/autograd/profiler_legacy.h and .cpp; the names are theirs.
"""

from otel_recfn.legacy.config import ActiveProfilerType, EventKind, ProfilerConfig, ProfilerDisableOptions, ProfilerState
from otel_recfn.legacy.cuda import CudaRecord, CudaStubs, register_cuda_methods
from otel_recfn.legacy.event import LegacyEvent, RangeEventList, TorchRecord, torch_records
from otel_recfn.legacy.lists import ThreadEventLists, ThreadEvents
from otel_recfn.legacy.profiler import (
    TLSLegacyProfilerGuard,
    add_event_list,
    disable_profiler_legacy,
    enable_profiler_legacy,
    mark,
    profiler_config,
    profiler_enabled,
    profiler_type,
)
from otel_recfn.legacy.record_profile import RecordProfile, write_profiler_events_to_stream
from otel_recfn.model.errors import ProfilerError

__all__ = [
    "ActiveProfilerType",
    "CudaRecord",
    "CudaStubs",
    "EventKind",
    "LegacyEvent",
    "ProfilerConfig",
    "ProfilerDisableOptions",
    "ProfilerError",
    "ProfilerState",
    "RangeEventList",
    "RecordProfile",
    "TLSLegacyProfilerGuard",
    "ThreadEventLists",
    "ThreadEvents",
    "TorchRecord",
    "add_event_list",
    "disable_profiler_legacy",
    "enable_profiler_legacy",
    "mark",
    "profiler_config",
    "profiler_enabled",
    "profiler_type",
    "register_cuda_methods",
    "torch_records",
    "write_profiler_events_to_stream",
]
