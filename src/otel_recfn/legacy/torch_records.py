"""Legacy events in the form that PyTorch's parser of legacy records takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from otel_recfn.legacy.event import LegacyEvent

METHODS = {"kind": "kind_str", "start_us": "cpu_us"} | {
    name: name
    for name in (
        "name",
        "thread_id",
        "fwd_thread_id",
        "device",
        "has_cuda",
        "shapes",
        "cpu_memory_usage",
        "cuda_memory_usage",
        "handle",
        "node_id",
        "is_remote",
        "sequence_nr",
        "stack",
        "scope",
        "correlation_id",
        "flops",
        "is_async",
    )
}
"""The attributes that the methods of ``TorchRecord`` return."""


def torch_records(lists: Iterable[Iterable[LegacyEvent]]) -> list[list[TorchRecord]]:
    """The lists of ``disable_profiler_legacy`` in the form of
    ``torch.autograd._disable_profiler_legacy``.

    from torch.autograd.profiler_legacy import _parse_legacy_records
    from torch.autograd.profiler_util import EventList

    events = EventList(_parse_legacy_records(torch_records(lists)), use_device=None)
    """
    return [[TorchRecord(event) for event in events] for events in lists]


class TorchRecord:
    """A LegacyEvent with the interface of ``torch._C._autograd.ProfilerEvent``, where our
    attributes are methods.
    """

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


def _with_lists(value: Any) -> Any:
    return [_with_lists(item) for item in value] if isinstance(value, tuple) else value
