"""The values of the legacy profiler: the configuration of a run, and its events, with PyTorch's fields, names and numbers.

Source: ``ProfilerConfig`` and ``LegacyEvent`` in torch/csrc/autograd/profiler_legacy.h; both can be sent to another process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from operator import index
from typing import Any

from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.cuda import cuda_stubs
from otel_recfn.model.events import Extra

log = logging.getLogger("otel_recfn")

# --- the configuration of a run

NUM_VALUES = 3
"""The values of a config that is sent: state, shapes, memory."""
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
    """The profiler that runs in a thread, with PyTorch's values (``torch::profiler::impl::ActiveProfilerType``)."""

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
            raise ProfilerError(
                f"Expected a list of {NUM_VALUES} values, got {values!r}; pass what to_value_list gave"
            )
        state, shapes, memory = values[:NUM_VALUES]
        if (
            type(state) is not int
            or state not in {*ProfilerState}
            or type(shapes) is not bool
            or type(memory) is not bool
        ):
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
        of_operators = (
            Extra.SHAPES * shapes | Extra.STACK * self.with_stack | Extra.FLOPS * self.with_flops
        )
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


# --- events


class EventKind(IntEnum):
    """The kind of a legacy event, with PyTorch's values."""

    MARK = 0
    PUSH_RANGE = 1
    POP_RANGE = 2
    MEMORY_ALLOC = 3


CPU_MEMORY = ("cpu", "mkldnn", "ideep")
CUDA_MEMORY = ("cuda", "hip")
KIND_WORDS = ("mark", "push", "pop", "memory_alloc")
"""The kinds as texts, in the order of EventKind."""


@dataclass(slots=True)
class LegacyEvent:
    """An event. A push describes its range; its pop has the same handle and node, and its own time and thread.

    Attributes:
        name: of the range or the mark; empty for pops and memory.
        thread_id: RecordFunction's logical id of the thread it happened in.
        handle: of the range; 0 for marks and memory.
        shapes: one per input; empty for inputs that are no tensors, and for lists of tensors.
        node_id: of a process in a group, -1 if there is none.
        is_async: the range may end on another thread.
        is_remote: it came from another process, as values.
        cpu_ns: Unix nanoseconds.
        cpu_memory_usage, cuda_memory_usage: bytes that were allocated, negative when freed.
        device: the GPU, -1 if none was recorded.
        cuda_us: microseconds on the GPU's clock; for remote events, -1 elsewhere.
        cuda_event: what ``device`` recorded.
        sequence_nr: of autograd, -1 if there is none.
        fwd_thread_id: of the forward range, 0 if there is none.
        flops: floating point operations, 0 if they weren't counted.
        stack: ``file(line): function``, innermost first.
        event_id: the same in spans and Chrome traces; 0 for remote events.
        correlation_id: for whoever joins it with events of a device; 0 until then.
    """

    kind: EventKind
    name: str
    thread_id: int
    handle: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    node_id: int = -1
    is_async: bool = False
    is_remote: bool = False
    cpu_ns: int = 0
    cpu_memory_usage: int = 0
    cuda_memory_usage: int = 0
    device: int = -1
    cuda_us: int = -1
    cuda_event: Any = None
    sequence_nr: int = -1
    fwd_thread_id: int = 0
    scope: int = 0
    flops: int = 0
    stack: tuple[str, ...] = ()
    event_id: int = 0
    correlation_id: int = 0
    _extra_args: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def extra_args(self) -> Mapping[str, Any]:
        """The arguments from which floating point operations were counted, by PyTorch's names; empty if they weren't."""
        return self._extra_args or {}

    @property
    def kind_str(self) -> str:
        """The kind as a text: ``mark``, ``push``, ``pop`` or ``memory_alloc``."""
        return KIND_WORDS[self.kind]

    @property
    def cpu_us(self) -> float:
        """The event's time in Unix microseconds."""
        return self.cpu_ns / 1000

    @property
    def has_cuda(self) -> bool:
        """Whether the event has a time on a GPU."""
        return self.cuda_event is not None or (self.is_remote and self.device != -1)

    def cpu_elapsed_us(self, later: LegacyEvent) -> float:
        """Microseconds from this event to a later one; negative if that was earlier."""
        return (later.cpu_ns - self.cpu_ns) / 1000

    def cuda_elapsed_us(self, later: LegacyEvent) -> float:
        """Microseconds on the GPU from this event to a later one of the same GPU; waits until it is that far."""
        if not (self.has_cuda and later.has_cuda):
            raise ProfilerError(
                "Events were not recorded for CUDA; enable the profiler with ProfilerState.CUDA"
            )
        if self.device != later.device:
            raise ProfilerError(
                f"Events are not on the same device: {later.device} vs {self.device}; compare a push with its own pop"
            )
        if self.is_remote and later.is_remote:
            return float(later.cuda_us - self.cuda_us)
        if self.cuda_event is None or later.cuda_event is None:
            raise ProfilerError("only one of the events is remote; compare events of one process")
        elapsed_us: float = cuda_stubs().elapsed_us(self.cuda_event, later.cuda_event)
        return elapsed_us

    def to_value_list(self) -> list[Any]:
        """The twelve values that are sent to another process (``LegacyEvent::toIValue``).

        Of times on the GPU only ``cuda_us`` goes along; set it before.
        """
        return [
            int(self.kind),
            self.name,
            self.thread_id,
            float(self.handle),
            self.node_id,
            self.cpu_memory_usage,
            self.cpu_ns,
            self.has_cuda,
            self.cuda_memory_usage,
            self.device,
            self.cuda_us,
            [list(shape) for shape in self.shapes],
        ]

    @classmethod
    def from_value_list(cls, values: Any) -> LegacyEvent:
        """The remote event from the values of ``to_value_list`` (``LegacyEvent::fromIValue``)."""
        return cls(**_decoded(values), is_remote=True)


@cache
def is_on_cuda(device: str) -> bool | None:
    """Whether memory on this device counts as the GPU's or the CPU's; None for neither, which is logged once."""
    kind = device.partition(":")[0]
    if kind in CUDA_MEMORY or kind in CPU_MEMORY:
        return kind in CUDA_MEMORY
    log.warning("Unsupported memory profiling device: %s", kind)
    return None


# --- as values

VALUES: tuple[tuple[str, type], ...] = (
    ("kind", int),
    ("name", str),
    ("thread_id", int),
    ("handle", float),
    ("node_id", int),
    ("cpu_memory_usage", int),
    ("cpu_ns", int),
    ("cuda_recorded", bool),
    ("cuda_memory_usage", int),
    ("device", int),
    ("cuda_us", int),
    ("shapes", list),
)
"""The values that are sent, in order, with their types. A handle is a float, rounded above 2**53; shapes are lists of lists."""


def _decoded(values: Any) -> dict[str, Any]:
    """The fields of a LegacyEvent from its values; later values are ignored."""
    kinds = [kind for _, kind in VALUES]
    if not isinstance(values, list) or [type(value) for value in values[: len(VALUES)]] != kinds:
        expected = ", ".join([f"{name} ({kind.__name__})" for name, kind in VALUES])
        raise ProfilerError(
            f"Expected a list of {expected}, got {values!r}; pass what to_value_list gave"
        )
    fields: dict[str, Any] = dict(zip((name for name, _ in VALUES), values, strict=False))
    recorded = fields.pop("cuda_recorded")
    if fields["cpu_ns"] <= 0 or (recorded and min(fields["device"], fields["cuda_us"]) < 0):
        raise ProfilerError(
            f"Expected the times of a recorded event, got {values!r}; set cuda_us before it is sent"
        )
    try:
        shapes = tuple([tuple(map(index, shape)) for shape in fields["shapes"]])
        return {
            **fields,
            "kind": EventKind(fields["kind"]),
            "handle": int(fields["handle"]),
            "shapes": shapes,
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise ProfilerError(
            f"Expected a kind, a handle and lists of sizes: {error}; pass what to_value_list gave"
        ) from None


# --- for PyTorch's parser of legacy records


def torch_records(lists: Iterable[Iterable[LegacyEvent]]) -> list[list[TorchRecord]]:
    """The lists of ``disable_profiler_legacy`` in the form of ``torch.autograd._disable_profiler_legacy``.

    from torch.autograd.profiler_legacy import _parse_legacy_records
    from torch.autograd.profiler_util import EventList

    events = EventList(_parse_legacy_records(torch_records(lists)), use_device=None)
    """
    return [[TorchRecord(event) for event in events] for events in lists]


class TorchRecord:
    """A LegacyEvent with the interface of ``torch._C._autograd.ProfilerEvent``, where our attributes are methods."""

    __slots__ = ("event",)

    def __init__(self, event: LegacyEvent) -> None:
        self.event = event

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name not in METHODS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(self.event, METHODS[name])
        return lambda: _with_lists(value)

    def cpu_elapsed_us(self, later: TorchRecord) -> float:
        """The microseconds from this event to a later one."""
        return self.event.cpu_elapsed_us(later.event)

    def cuda_elapsed_us(self, later: TorchRecord) -> float:
        """The microseconds on the GPU from this event to a later one."""
        return self.event.cuda_elapsed_us(later.event)


METHODS = {"kind": "kind_str", "start_us": "cpu_us"} | {
    name: name
    for name in {
        "name",
        "thread_id",
        "fwd_thread_id",
        "device",
        "has_cuda",
        "shapes",
        "cpu_memory_usage",
        "cuda_memory_usage",
    }
    | {
        "handle",
        "node_id",
        "is_remote",
        "sequence_nr",
        "stack",
        "scope",
        "correlation_id",
        "flops",
        "is_async",
    }
}
"""The attributes that the methods of ``TorchRecord`` return."""


def _with_lists(value: Any) -> Any:
    return [_with_lists(item) for item in value] if isinstance(value, tuple) else value
