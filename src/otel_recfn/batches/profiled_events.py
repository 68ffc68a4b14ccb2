"""The rows of a profile one by one: with the columns as attributes, and those of ``torch.profiler``'s events."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from otel_recfn.batches.averages import (
    allocated_bytes,
    direct_children,
    nesting,
    own_bytes,
    self_times,
)
from otel_recfn.batches.forward_links import with_node_numbers
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import OVERLAPPING, RecordScope


class Interval(NamedTuple):
    """A time span, in microseconds since the first row of the profile."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Microseconds from start to end."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ProfiledEvent(Event):
    """A row of a profile. Attributes of ``torch.profiler``'s have its names, and times in microseconds."""

    self_ns: int
    """Nanoseconds without direct children; 0 for asynchronous ranges, marks and memory."""
    first_ns: int
    """The begin of the first row of the profile, in Unix nanoseconds."""
    cpu_memory_usage: int
    """Bytes allocated less bytes freed within the range."""
    self_cpu_memory_usage: int
    """The same without direct children."""
    cpu_parent: ProfiledEvent | None = field(default=None, repr=False, compare=False)
    """The range around it in the same thread; None if that ran in another thread, or overlaps."""
    cpu_children: list[ProfiledEvent] = field(default_factory=list, repr=False, compare=False)
    """The events whose ``cpu_parent`` it is."""

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
    def input_shapes(self) -> list[Any]:
        """The shape of each input, as a list; empty for what is no tensor, and for lists of tensors, which ``shapes`` has."""
        try:
            shapes = json.loads(self.shapes or "[]")
        except ValueError:  # a text that was too long to keep
            shapes = ()
        return [
            []
            if isinstance(shape, list) and any(isinstance(size, list) for size in shape)
            else shape
            for shape in shapes
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


def profiled_events(rows: Batch) -> list[ProfiledEvent]:
    """The rows in start order; of two that start at once, the one that began first."""
    rows = with_node_numbers(rows, {})
    nested = nesting(rows)
    memory = allocated_bytes(rows, nested)
    own = (self_times(rows, nested), memory, own_bytes(rows, nested, memory))
    first = int(rows.start_ns.min()) if len(rows) else 0
    found = [
        ProfiledEvent(
            **columns,
            self_ns=self_ns,
            first_ns=first,
            cpu_memory_usage=nbytes,
            self_cpu_memory_usage=own_nbytes,
        )
        for columns, self_ns, nbytes, own_nbytes in zip(
            rows.rows(), *[column.tolist() for column in own], strict=True
        )
    ]
    for child, parent in zip(
        *[column.tolist() for column in direct_children(rows, nested)], strict=True
    ):
        object.__setattr__(found[child], "cpu_parent", found[parent])
    found.sort(key=attrgetter("start_ns", "event_id"))
    for event in found:
        if event.cpu_parent is not None:
            event.cpu_parent.cpu_children.append(event)
    return found
