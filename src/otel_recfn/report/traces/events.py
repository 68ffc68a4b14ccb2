"""The events of a Chrome trace, read in parts as numbers: a million of them as objects would take a
gigabyte.

    X, b, B, i    a row: begin, length, thread, type, order  ──► EventTypes: the other columns
                  what few events have                       ──► OptionalColumns, ExplicitParents
    b e, B E      begins and ends                            ──► TwoEventRanges
    s f           arrows from forward to backward            ──► ForwardArrows
    X             runs of samples, which are no ranges        ──► SampleSlice
    X             training steps that nothing marks           ──► TrainingStep
    M             names of threads and processes             ──► TraceThreads
    not readable  counted                                    ──► UnreadEvents

``batch.py`` makes the batch of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.sampled_functions import (
    IN_OPERATOR,
    LOADED_ITEM,
    SAMPLE_COUNT,
    SAMPLED,
    SAMPLED_FUNCTION,
    SAMPLED_TIME,
    WAITED_FOR,
)
from otel_recfn.model.batch import TrainingStep
from otel_recfn.model.events import STEP_NUMBER
from otel_recfn.report.activities import STREAM_ARGUMENTS
from otel_recfn.report.traces.columns import (
    MAX_VALUE,
    OPTIONAL_COLUMNS,
    EventType,
    EventTypes,
    OptionalColumns,
)
from otel_recfn.report.traces.explicit_parents import ExplicitParents
from otel_recfn.report.traces.forward_arrows import ARROWS, ForwardArrows
from otel_recfn.report.traces.phases import SLICES, WITHOUT_TIMES
from otel_recfn.report.traces.threads import TraceThreads
from otel_recfn.report.traces.two_event_ranges import TwoEventRanges
from otel_recfn.report.traces.unread_events import UnreadEvents

MAX_US = 4e15
"""The latest time in a trace, after 126 years: added to the base, later ones would not fit 64
bits of nanoseconds.
"""
MAX_END_NS = 1 << 62
"""The latest end of a slice, which still fits 64 bits with the base."""
MAX_ORDER = 1 << 62
MAX_SAMPLES = 1 << 16
"""The maximum number of samples that a run is taken for."""
NO_ARGUMENTS: dict[str, Any] = {}

Row = tuple[int, int, int, int, int]
"""The begin and length in nanoseconds, the thread, the type, and the order of events that begin
and end at once.
"""


class SampleSlice(NamedTuple):
    """A run of samples of a function, with times in nanoseconds."""

    name: str
    thread: int
    start: int
    length: int
    samples: int
    duration: int
    """The time that they stand for."""
    parent: int
    """The ``Event id`` of the range around it; 0: none."""
    waits_for: str
    """What the thread waited for; empty if it isn't known to have waited."""
    is_in_operator: bool
    """Whether the thread waited in an operator, whose time it is."""
    item: str
    """The index of the item that a DataLoader makes; empty if none is known."""


class TraceEvents:
    """The events of a trace while it is read."""

    def __init__(self) -> None:
        self.base_ns: Any = None
        """The Unix time that the trace's times count from, if an event says it; otherwise None."""
        self.run = ""
        """The id of the run of the program that the trace is of; empty if no event says it."""
        self.seen = 0
        """The number of events that the trace has."""
        self.texts = {"": 0}
        """The numbers of all texts."""
        self.types = EventTypes(self.texts)
        self.optional = OptionalColumns(self.texts)
        self.parents = ExplicitParents()
        self.two_event_ranges = TwoEventRanges()
        self.open_rows: list[int] = []
        """The rows of slices that were open when the trace ended."""
        self.arrows = ForwardArrows()
        self.threads = TraceThreads()
        self.samples: list[SampleSlice] = []
        self.steps: list[TrainingStep] = []
        """The training steps that nothing marks, with times as in the trace."""
        self.unread = UnreadEvents()
        self._parts = [np.zeros((0, 5), np.int64)]
        self._row_count = 0

    @property
    def script(self) -> str:
        """The script of Python that ran; empty if the trace names none."""
        return self.threads.script

    @property
    def left_out(self) -> str:
        """How many events were not read, and why, without a full stop; empty if all were read."""
        return self.unread.sentence(self.seen)

    def leave_out(self, reason: str, count: int) -> None:
        """Count events that can't be added for this reason."""
        self.seen += count
        self.unread.add(reason, count)

    def add(self, events: Iterable[Any]) -> None:
        """Add a part of the events.

        Slices of the profiler itself are no part of the program; events that can't be read are
        counted.
        """
        rows: list[Row] = []
        for event in events:
            self.seen += 1
            try:
                phase = event["ph"]
                if phase in SLICES:
                    row = self._slice_row(event, phase, self._row_count + len(rows))
                    if row is not None:
                        rows.append(row)
                else:
                    self._add_other_event(event, phase)
            except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
                self.unread.add_unreadable(event)
        self._parts.append(_as_columns(rows))
        self._row_count += len(rows)

    def _slice_row(self, event: dict[str, Any], phase: str, row: int) -> Row | None:
        """The row of a slice, or of the begin of one; None if it is no part of the program."""
        args = event.get("args") or NO_ARGUMENTS
        start = _nanoseconds(event["ts"])
        length = _nanoseconds(event.get("dur", 0)) if phase == "X" else 0
        if event.get("cat") == SAMPLED and SAMPLED_FUNCTION in args:
            self._add_sample_slice(event, args, start, length)
            return None
        if phase == "X" and STEP_NUMBER in args and "Event id" not in args:
            self._add_step(event, args, start, length)
            return None
        event_type = self._type(event, phase, args)
        if event_type is None:
            return None
        order = args.get("Event id") or args.get("Ev Idx")
        thread = self.threads.number(event)
        self.parents.add(args, row)
        if args.get("Partial") is True:
            self.open_rows.append(row)
        if not OPTIONAL_COLUMNS.keys().isdisjoint(args):
            self.optional.add(args, row)
        if event_type in self.types.unknown_lanes and not STREAM_ARGUMENTS.isdisjoint(args):
            self.threads.streams.add(thread)
        if phase == "b":
            self.two_event_ranges.begin_async(event, row)
            self.parents.add_async(args, row)
        elif phase == "B":
            self.two_event_ranges.begin(thread, start, row)
        if not (isinstance(order, int) and 0 < order < MAX_ORDER):
            order = row
        return start, length, thread, event_type, order

    def _add_sample_slice(
        self, event: dict[str, Any], args: dict[str, Any], start: int, length: int
    ) -> None:
        found = SampleSlice(
            name=str(args[SAMPLED_FUNCTION]),
            thread=self.threads.number(event),
            start=start,
            length=length,
            samples=min(max(int(args[SAMPLE_COUNT]), 1), MAX_SAMPLES),
            duration=max(int(args[SAMPLED_TIME]), 0),
            parent=int(args["Parent id"]),
            waits_for=str(args.get(WAITED_FOR, "")),
            is_in_operator=args.get(IN_OPERATOR) is True,
            item=str(args.get(LOADED_ITEM, "")),
        )
        self.samples.append(found)

    def _add_step(
        self, event: dict[str, Any], args: dict[str, Any], start: int, length: int
    ) -> None:
        """Add a training step, whose ranges are known by their times alone."""
        step = TrainingStep(
            number=int(args[STEP_NUMBER]),
            first=0,
            last=0,
            start_ns=start,
            end_ns=min(start + max(length, 0), MAX_END_NS),
            thread=self.threads.number(event),
            context=0,
        )
        self.steps.append(step)

    def _type(self, event: dict[str, Any], phase: str, args: dict[str, Any]) -> int | None:
        """The number of a slice's type; None if it is no part of the program."""
        category = event.get("cat", "")
        number = args.get(STEP_NUMBER, -1)
        if not (isinstance(number, int) and number < MAX_VALUE):
            number = -1
        is_span = "span_id" in args and "Event id" not in args
        # As an EventType it would take longer, for each of a million events.
        key = event["name"], category, phase, args.get("Scope"), args.get("Source"), number, is_span
        event_type = self.types.numbers.get(key)
        if event_type is None:
            event_type = self.types.add(EventType(*key), is_memory="Bytes" in args)
        return event_type

    def _add_other_event(self, event: dict[str, Any], phase: str) -> None:
        """Add the name of a thread, the end of a range, or one end of an arrow."""
        if phase == "M":
            self._add_metadata(event)
        elif phase == "e":
            self.two_event_ranges.end_async(event, _nanoseconds(event["ts"]))
        elif phase == "E":
            self.two_event_ranges.end(self.threads.number(event), _nanoseconds(event["ts"]))
        elif phase == "s" and event["cat"] == ARROWS:
            self.arrows.begin(self.threads.number(event), event["id"])
        elif phase == "f" and event["cat"] == ARROWS:
            thread = self.threads.number(event)
            self.arrows.end(thread, _nanoseconds(event["ts"]), event["id"])
        elif phase not in WITHOUT_TIMES:
            raise ValueError(phase)

    def _add_metadata(self, event: dict[str, Any]) -> None:
        self.threads.add_label(event)
        args = event["args"]
        self.base_ns = args.get("baseTimeNanoseconds", self.base_ns)
        self.run = str(args.get("run", self.run))

    def take_rows(self) -> NDArray[np.int64]:
        """All rows, as columns: begin, end, thread, type and order. They are not kept."""
        rows = np.concatenate(self._parts)
        self._parts.clear()
        return np.asarray(rows.T)


def _as_columns(rows: list[Row]) -> NDArray[np.int64]:
    """The rows as columns: begin, end, thread, type and order."""
    numbers = np.zeros((len(rows), 5), np.int64)
    if rows:
        for column, values in enumerate(zip(*rows, strict=True)):
            numbers[:, column] = values
        numbers[:, 1] = np.minimum(numbers[:, 0] + np.maximum(numbers[:, 1], 0), MAX_END_NS)
    return numbers


def _nanoseconds(us: Any) -> int:
    """The nanoseconds of a time in microseconds: a number, or its text, as Ascend writes times
    that floats can't tell apart.
    """
    number = Decimal(us) if isinstance(us, str) else us
    if not -MAX_US < number < MAX_US:
        raise ValueError(us)
    return round(number * 1000)
