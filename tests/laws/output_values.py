"""What an output says of ranges, spans and slices, and sums of them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NODE = "autograd::engine::evaluate_function: "
"""The prefix of the range around a backward node, which is one span with the node below
``detail="all"``.
"""
UNNAMED_STEP, STEP_IN_CHROME = "step", "ProfilerStep"
PROGRAM = "program"
"""The name of the program's tracer."""


@dataclass(frozen=True)
class Range:
    """What an output says of a range; None where it says nothing."""

    start_ns: int
    end_ns: int | None
    """None, too, where the range was open at the end: each capture has its own end."""
    name: str | None = None
    thread_id: int | None = None
    end_thread: int | None = None
    """The operating system's id."""
    scope: str | None = None
    error: str | None = None
    """Empty if no exception left it."""
    sequence_nr: int | None = None
    source: str | None = None
    step_number: int | None = None
    cpu_time_ns: int | None = None
    module: str | None = None
    parent: int | None = None
    """Event id of the range around it; 0 if there is none."""


Ranges = Mapping[int, Range]
"""By event id."""


@dataclass
class Sums:
    """Count, length, and length without the ranges in it, of ranges of one name.

    Times are in nanoseconds.
    """

    count: int = 0
    total_ns: float = 0
    self_ns: float | None = 0


SumsByName = Mapping[str, Sums]


class Report:
    """What a report says, as data for programs.

    Args:
        data: the data, without rows if there is nothing to report.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.sums: SumsByName = {
            row["name"]: Sums(row["count"], row["total_us"] * 1000, row["self_us"] * 1000)
            for row in data.get("by_name", ())
        }

    @property
    def wall_ns(self) -> int:
        """The wall time."""
        return round(self.data["wall"][0]["wall_us"] * 1000)

    @property
    def steps(self) -> list[tuple[str, int]]:
        """The name and the length of each step, thread by thread."""
        return [
            (step["step"], round(step["wall_us"] * 1000))
            for thread in self.data["wall"][0]["threads"]
            for step in thread["steps"]
        ]


@dataclass(frozen=True)
class Span:
    """A span as a backend has it, whatever way it came."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    """0 if it has none."""
    linked_ids: Sequence[int]
    """The ids of the spans that it links to."""
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: Mapping[str, Any]
    exceptions: Sequence[Mapping[str, Any]]
    is_ours: bool

    @property
    def event_id(self) -> int:
        """That of its range; 0 if it isn't one range's."""
        return int(self.attributes.get("recfn.event_id", 0))

    @property
    def calls(self) -> int:
        """The number of calls that it stands for, of a span ``... (folded)``; else 0."""
        return int(self.attributes.get("aggregation.span_count", 0))

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Slice:
    """A slice of a Chrome trace."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    thread: int
    end_thread: int
    args: Mapping[str, Any]
    nests: bool
    """Whether it lies in the slices around it on its thread."""


@dataclass
class ChromeTrace:
    """A Chrome trace and the report of it."""

    slices: list[Slice]
    report: Report
    instants: int

    def ranges(self) -> dict[int, Slice]:
        """The slices of ranges, by event id."""
        range_slices = [each for each in self.slices if "Event id" in each.args]
        found = {each.args["Event id"]: each for each in range_slices}
        assert len(found) == len(range_slices), "an event id stands in the trace twice"
        return found

    def spans(self) -> list[Slice]:
        """Those of the program's spans."""
        return [
            each for each in self.slices if "span_id" in each.args and "Event id" not in each.args
        ]

    def automatic_steps(self) -> list[Slice]:
        """Those of training steps that nobody marked."""
        return [
            each
            for each in self.slices
            if "recfn.step.number" in each.args and "Event id" not in each.args
        ]


def has_flag(event: Any, flag: str) -> bool:
    return bool(event.flags & type(event.flags)[flag])


def overlaps(event: Any) -> bool:
    """Whether others may overlap a range in its thread."""
    return has_flag(event, "ASYNC") or has_flag(event, "CROSSING")
