# ruff: noqa: I001 - each name is imported as itself, which hands it on
"""The legacy profiler: runs that belong to a thread, with events as pushes and pops.

Source: torch/csrc/autograd/profiler_legacy.h and .cpp; the names are theirs.
"""

from otel_recfn.legacy.config import (
    ActiveProfilerType as ActiveProfilerType,
    ProfilerConfig as ProfilerConfig,
    ProfilerDisableOptions as ProfilerDisableOptions,
    ProfilerState as ProfilerState,
)
from otel_recfn.legacy.event import LegacyEvent as LegacyEvent
from otel_recfn.legacy.kinds import EventKind as EventKind
from otel_recfn.legacy.torch_records import (
    TorchRecord as TorchRecord,
    torch_records as torch_records,
)
from otel_recfn.legacy.cuda import (
    CudaRecord as CudaRecord,
    CudaStubs as CudaStubs,
    register_cuda_methods as register_cuda_methods,
)
from otel_recfn.legacy.thread_events import (
    ThreadEventLists as ThreadEventLists,
    ThreadEvents as ThreadEvents,
)
from otel_recfn.errors import ProfilerError as ProfilerError, RecorderUnavailable
from otel_recfn.support.native_part import placeholders

_NEED_THE_NATIVE_PART = [
    "RecordProfile",
    "TLSLegacyProfilerGuard",
    "add_event_list",
    "disable_profiler_legacy",
    "enable_profiler_legacy",
    "mark",
    "profiler_config",
    "profiler_enabled",
    "profiler_type",
    "write_profiler_events_to_stream",
]

try:
    from otel_recfn.legacy.profiler import (
        TLSLegacyProfilerGuard as TLSLegacyProfilerGuard,
        add_event_list as add_event_list,
        disable_profiler_legacy as disable_profiler_legacy,
        enable_profiler_legacy as enable_profiler_legacy,
        mark as mark,
        profiler_config as profiler_config,
        profiler_enabled as profiler_enabled,
        profiler_type as profiler_type,
    )
    from otel_recfn.legacy.record_profile import (
        RecordProfile as RecordProfile,
        write_profiler_events_to_stream as write_profiler_events_to_stream,
    )
except RecorderUnavailable:  # the other names can be imported, and raise when they are used
    globals()["__getattr__"] = placeholders(_NEED_THE_NATIVE_PART)
