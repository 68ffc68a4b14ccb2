"""A legacy event, with PyTorch's fields and names.

Source: ``LegacyEvent`` in torch/csrc/autograd/profiler_legacy.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_recfn.errors import ProfilerError
from otel_recfn.legacy.cuda import cuda_stubs
from otel_recfn.legacy.kinds import KIND_WORDS, EventKind
from otel_recfn.legacy.value_lists import OTHER_VALUES, VALUES, decoded, decoded_others


@dataclass(slots=True)
class LegacyEvent:
    """An event.

    A push describes its range; its pop has its handle, and its own time, thread and node.

    Attributes:
        name: of the range or the mark; empty for pops and memory.
        thread_id: RecordFunction's logical id of the thread it happened in.
        handle: of the range; 0 for marks and memory.
        shapes: one per input; empty for inputs that are no tensors, and for lists of tensors.
        node_id: of the process in a group, as it was then; -1 if there was none.
        is_async: the range may end on another thread.
        is_remote: it came from PyTorch's values, which don't say whether it is of this process.
        cpu_ns: Unix nanoseconds.
        cpu_memory_usage, cuda_memory_usage: bytes that were allocated, negative when freed.
        device: the GPU, -1 if none was recorded.
        cuda_us: microseconds on the GPU's clock, of events that came as values; -1 of others.
        cuda_event: the event that ``device`` recorded.
        sequence_nr: of autograd, -1 if there is none.
        fwd_thread_id: of the forward range, 0 if there is none.
        flops: floating point operations, 0 if they weren't counted.
        stack: ``file(line): function``, innermost first.
        event_id: the same in spans and Chrome traces; 0 for remote events.
        correlation_id: for programs that join it with events of a device; 0 until then.
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
        """The arguments from which floating point operations were counted, by PyTorch's names;
        empty if they weren't.
        """
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
        return self.cuda_event is not None or (
            self.device != -1 and (self.is_remote or self.cuda_us != -1)
        )

    def cpu_elapsed_us(self, later: LegacyEvent) -> float:
        """Microseconds from this event to a later one; negative if that was earlier."""
        return (later.cpu_ns - self.cpu_ns) / 1000

    def cuda_elapsed_us(self, later: LegacyEvent) -> float:
        """Microseconds on the GPU from this event to a later one of the same GPU; waits until it
        is that far.
        """
        if not (self.has_cuda and later.has_cuda):
            raise ProfilerError(
                "Events were not recorded for CUDA; enable the profiler with ProfilerState.CUDA"
            )
        if self.device != later.device:
            raise ProfilerError(
                f"Events are not on the same device: {later.device} vs {self.device}; compare a"
                " push with its own pop"
            )
        if self.cuda_event is None and later.cuda_event is None:
            return float(later.cuda_us - self.cuda_us)
        if self.cuda_event is None or later.cuda_event is None:
            raise ProfilerError(
                "only one of the events came as values; compare it with another such event"
            )
        elapsed_us: float = cuda_stubs().elapsed_us(self.cuda_event, later.cuda_event)
        return elapsed_us

    def to_value_list(self) -> list[Any]:
        """The values that are sent to another process.

        First come PyTorch's twelve (``LegacyEvent::toIValue``), then the other attributes. Of times
        on the GPU only ``cuda_us`` goes along; set it before.
        """
        torchs_fields = [
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
        arguments = [[name, value] for name, value in self.extra_args.items()]
        others = [kind(getattr(self, name)) for name, kind in OTHER_VALUES]
        return [*torchs_fields, *others, list(self.stack), arguments]

    @classmethod
    def from_value_list(cls, values: Any) -> LegacyEvent:
        """The event from the values of ``to_value_list``.

        From PyTorch's values alone, a remote event (``LegacyEvent::fromIValue``).
        """
        return cls(**decoded(values), **decoded_others(values[len(VALUES) :]))
