"""Our events with the accessors of PyTorch's binding of its own, for PyTorch's parser of legacy records.

    from torch.autograd.profiler_legacy import _parse_legacy_records
    from torch.autograd.profiler_util import EventList

    events = EventList(_parse_legacy_records(torch_records(lists)), use_device=None)

What are attributes of our events are methods there.
"""

from __future__ import annotations

from collections.abc import Iterable

from otel_recfn.legacy.event import LegacyEvent


def torch_records(lists: Iterable[Iterable[LegacyEvent]]) -> list[list[TorchRecord]]:
    """What ``disable_profiler_legacy`` gave, as ``torch.autograd._disable_profiler_legacy`` gives its own."""
    return [[TorchRecord(event) for event in events] for events in lists]


class TorchRecord:
    """A LegacyEvent as ``torch._C._autograd.ProfilerEvent``."""

    __slots__ = ("event",)

    def __init__(self, event: LegacyEvent) -> None:
        self.event = event

    def kind(self) -> str:
        """``mark``, ``push``, ``pop`` or ``memory_alloc``."""
        return self.event.kind_str

    def name(self) -> str:
        """See LegacyEvent, as for all that follow."""
        return self.event.name

    def thread_id(self) -> int:
        """As the event's."""
        return self.event.thread_id

    def fwd_thread_id(self) -> int:
        """As the event's."""
        return self.event.fwd_thread_id

    def device(self) -> int:
        """As the event's."""
        return self.event.device

    def cpu_elapsed_us(self, later: TorchRecord) -> float:
        """As the event's."""
        return self.event.cpu_elapsed_us(later.event)

    def cuda_elapsed_us(self, later: TorchRecord) -> float:
        """As the event's."""
        return self.event.cuda_elapsed_us(later.event)

    def has_cuda(self) -> bool:
        """As the event's."""
        return self.event.has_cuda

    def shapes(self) -> list[list[int]]:
        """As the event's."""
        return [list(shape) for shape in self.event.shapes]

    def cpu_memory_usage(self) -> int:
        """As the event's."""
        return self.event.cpu_memory_usage

    def cuda_memory_usage(self) -> int:
        """As the event's."""
        return self.event.cuda_memory_usage

    def handle(self) -> int:
        """As the event's."""
        return self.event.handle

    def node_id(self) -> int:
        """As the event's."""
        return self.event.node_id

    def is_remote(self) -> bool:
        """As the event's."""
        return self.event.is_remote

    def sequence_nr(self) -> int:
        """As the event's."""
        return self.event.sequence_nr

    def stack(self) -> list[str]:
        """As the event's."""
        return list(self.event.stack)

    def scope(self) -> int:
        """As the event's."""
        return self.event.scope

    def correlation_id(self) -> int:
        """As the event's."""
        return self.event.correlation_id

    def start_us(self) -> float:
        """When it was, in Unix microseconds."""
        return self.event.cpu_us

    def flops(self) -> int:
        """As the event's."""
        return self.event.flops

    def is_async(self) -> bool:
        """As the event's."""
        return self.event.is_async
