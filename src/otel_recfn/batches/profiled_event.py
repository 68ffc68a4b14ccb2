"""A row of a profile, with the columns as attributes, and those of ``torch.profiler``'s events."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from otel_recfn.batches.input_values import parsed_list, type_name
from otel_recfn.batches.torch_attributes import TorchAttributes
from otel_recfn.model.batch import Event
from otel_recfn.model.events import OVERLAPPING, EventSource, RecordScope, RowKind, is_call


class Interval(NamedTuple):
    """A time span, in microseconds since the first row of the profile."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Microseconds from start to end."""
        return self.end - self.start


class Kernel(NamedTuple):
    """Work that was launched on a device, which ``append_kernel`` adds to an event."""

    name: str
    device: int
    duration: float


@dataclass(frozen=True, slots=True)
class ProfiledEvent(TorchAttributes, Event):
    """A range, mark or memory report of a profile.

    It has all attributes of ``torch.profiler``'s events under their names, with times in
    microseconds. Attributes of which nothing is recorded have torch.profiler's empty values: a
    device's time is 0, strides are an empty list. Two attributes differ from torch.profiler's:
    ``thread`` is the thread with its names, and ``stack`` is a text.
    """

    concrete_inputs: list[Any]  # type: ignore[assignment]  # in place of the column's text
    """The value of each input that is a number or a short list of numbers, None for other inputs;
    empty without ``record_shapes``.
    """
    self_ns: int
    """Nanoseconds without direct children; 0 for asynchronous ranges, marks and memory."""
    first_ns: int
    """The begin of the first row of the profile, in Unix nanoseconds."""
    cpu_memory_usage: int
    """Bytes allocated less bytes freed within the range."""
    self_cpu_memory_usage: int
    """The same without direct children."""
    device_memory_usage: int
    """The same as ``cpu_memory_usage`` on other devices."""
    self_device_memory_usage: int
    """The same without direct children."""
    python_id: int
    """The number of a traced Python call in the order of begins, as in Chrome traces; -1 for other
    rows.
    """
    python_parent_id: int
    """The number of the traced Python call that encloses it; -1 if there is none."""
    flow_id: int
    """The number of the flow from a forward range to its backward node, if this row begins or ends
    one; otherwise 0.
    """
    flow_start: bool
    """Whether it begins the flow."""
    cpu_parent: ProfiledEvent | None = field(default=None, repr=False, compare=False)
    """The parent in the same thread; None if the parent is in another thread or overlaps."""
    cpu_children: list[ProfiledEvent] = field(default_factory=list, repr=False, compare=False)
    """The events whose ``cpu_parent`` it is."""
    _kernels: tuple[Kernel, ...] = field(default=(), repr=False, compare=False)
    kwinputs = property(lambda self: {})
    structured_input_strides = property(lambda self: [])
    event_metadata = None
    metadata_json = ""
    linked_correlation_id = 0
    self_cpu_percent = total_cpu_percent = total_device_percent = -1
    cuda_time_total = self_cuda_time_total = self_cuda_memory_usage = 0

    def __hash__(self) -> int:
        """The same whatever ``append_cpu_child`` does, so that an event in a set is found
        afterwards.
        """
        return hash(self.event_id)

    @property
    def kernels(self) -> list[Kernel]:
        """The work that ``append_kernel`` added: none is recorded."""
        return list(self._kernels)

    @property
    def id(self) -> int:
        """The event id."""
        return self.event_id

    external_id = id

    @property
    def trace_name(self) -> str:
        """The name."""
        return self.name

    @property
    def device_index(self) -> int:
        """The process's id, as torch.profiler has it of what ran on the CPU."""
        return os.getpid()

    @property
    def device_resource_id(self) -> int:
        """The operating system's id of the thread."""
        return self.thread.native_id

    @property
    def flow_type(self) -> int:
        """1 if it has a flow, as those from forward to backward have in torch.profiler; else 0."""
        return int(self.flow_id != 0)

    @property
    def activity_type(self) -> str:
        """The category in Chrome traces."""
        if self.kind != RowKind.RANGE:
            return "cpu_instant_event"
        if self.is_python_function:
            return "python_function"
        return "user_annotation" if self.is_user_annotation else "cpu_op"

    @property
    def is_python_function(self) -> bool:
        """Whether it is a call of Python code or of a module."""
        return self.kind == RowKind.RANGE and is_call(self.source, self.name)

    @property
    def python_module_id(self) -> int:
        """Of a module's call: the number in its name; else -1."""
        number = self.name.rpartition("_")[2]
        return int(number) if self.source == EventSource.MODULE and number.isdecimal() else -1

    @property
    def key(self) -> str:
        """The name."""
        return self.name

    @property
    def count(self) -> int:
        """The number of ranges: 1, as ``KeyAverage`` has more."""
        return 1

    @property
    def time_range(self) -> Interval:
        """The time from begin to end."""
        return Interval(
            (self.start_ns - self.first_ns) / 1000, (self.end_ns - self.first_ns) / 1000
        )

    @property
    def cpu_time_total(self) -> float:
        """Microseconds from begin to end."""
        return self.duration_ns / 1000

    @property
    def cpu_time(self) -> float:
        """The same: the average of one."""
        return self.cpu_time_total

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds without direct children; 0 for asynchronous ranges."""
        return self.self_ns / 1000

    @property
    def structured_input_shapes(self) -> list[Any]:
        """The shape of each input, as a list; of a list of tensors, a list of shapes."""
        return parsed_list(self.shapes)

    @property
    def input_shapes(self) -> list[Any]:
        """The same, but empty for lists of tensors."""
        return [
            [] if _is_list_of_shapes(shape) else shape for shape in self.structured_input_shapes
        ]

    @property
    def input_dtypes(self) -> list[str]:
        """The C++ type of each input, ``TensorList``, ``Scalar`` or ``ScalarList``; empty for
        others.
        """
        values = self.concrete_inputs or repeat(None)
        return [
            type_name(dtype, value)
            for dtype, value in zip(parsed_list(self.dtypes), values, strict=False)
        ]

    @property
    def is_async(self) -> bool:
        """Whether other ranges of its thread may overlap it."""
        return bool(self.flags & OVERLAPPING)

    @property
    def is_user_annotation(self) -> bool:
        """Whether it is a ``record_function`` block or the like."""
        return self.scope == RecordScope.USER_SCOPE

    @property
    def fwd_thread(self) -> int:
        """``forward_thread_id`` if it belongs to a forward range, else 0."""
        return self.forward_thread_id if self.sequence_nr >= 0 else 0

    def append_kernel(self, name: str, device: int, duration: float) -> None:
        """Add work on a device, with its microseconds: none is recorded, but others may know of
        it.
        """
        object.__setattr__(self, "_kernels", (*self._kernels, Kernel(name, device, duration)))

    def append_cpu_child(self, child: ProfiledEvent) -> None:
        """Add an event directly in this one, whose time and memory are then no longer this one's
        own.
        """
        self.cpu_children.append(child)
        own = {
            "self_ns": self.self_ns - child.duration_ns,
            "self_cpu_memory_usage": self.self_cpu_memory_usage - child.cpu_memory_usage,
            "self_device_memory_usage": self.self_device_memory_usage - child.device_memory_usage,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def set_cpu_parent(self, parent: ProfiledEvent) -> None:
        """Set the event around this one."""
        object.__setattr__(self, "cpu_parent", parent)


def _is_list_of_shapes(shape: Any) -> bool:
    return isinstance(shape, list) and any(isinstance(size, list) for size in shape)
