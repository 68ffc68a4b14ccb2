"""The columns of a trace's events, but for times: those that all events of a type share, and those
that not all events have.

A trace has a million events and some hundred types of them, so that what follows from the name,
category, phase and scope of an event is worked out once a type.

What recorded a range follows from its category, unless its event says another source. A name
doesn't say it: ``record_function("epoch#0")`` is no step, but a block.
"""

from __future__ import annotations

import json
from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.columns import COLUMNS
from otel_recfn.model.events import (
    PROFILER_STEP,
    UNNAMED_STEP,
    EventFlag,
    EventSource,
    RecordScope,
    RowKind,
)
from otel_recfn.report.activities import Lane, device_activity, known_category

TYPE_COLUMNS = ("name", "kind", "scope", "source", "step_number", "flags", "lane", "activity")
"""The columns that have one value for all events of a type."""
OPTIONAL_COLUMNS: dict[str, tuple[str, Any]] = {
    "CPU time (ns)": ("cpu_time_ns", int),
    "Bytes": ("nbytes", int),
    "Call stack": ("stack", str),
    "Call site": ("call_site", str),
    "Attributes": ("attributes", dict),
    "Module": ("module", str),
    "Error": ("error", str),
    "Sequence number": ("sequence_nr", int),
}
"""The columns that not all events have, by the name of the argument, each with the type of its
values.
"""
MAX_VALUE = 1 << 62
PROFILER_CATEGORY = "Trace"
"""The category of slices that say when the profiler itself ran."""
MODULE = "nn.Module: "
SCOPES = {scope.name: int(scope) for scope in RecordScope}
SOURCES = {source.name: int(source) for source in EventSource}
_EMPTY = {column.name: column.empty for column in COLUMNS}


class EventType(NamedTuple):
    """What events of a type have in common."""

    name: str
    category: str
    phase: str
    scope: str | None
    source: str | None
    step_number: int
    """The number of a step; -1 of others."""
    is_span: bool
    """Whether they are spans of the program's."""


class EventTypes:
    """The types of a trace's events, numbered.

    Args:
        texts: the numbers of all texts of the trace, which get the names of events.
    """

    def __init__(self, texts: dict[str, int]) -> None:
        self.numbers: dict[tuple[Any, ...], int] = {}
        """The types, each of which is an ``EventType``."""
        self.spans: set[int] = set()
        """The types of slices that are the program's spans."""
        self.module_calls: set[int] = set()
        """The types of this package's calls of modules, whose events say where they are in their
        model; torch.profiler's don't.
        """
        self.unknown_lanes: set[int] = set()
        """The types whose category doesn't say whether a device's lane has them."""
        self._columns: list[list[int]] = []
        self._texts = texts

    def add(self, added: EventType, *, is_memory: bool) -> int | None:
        """The number of a new type; None if its slices are no part of the program.

        Raises:
            TypeError: the name is no text.
        """
        if not isinstance(added.name, str):
            raise TypeError(added.name)
        if added.category == PROFILER_CATEGORY:
            return None
        known = known_category(added.category if isinstance(added.category, str) else "")
        source = _source(added)
        label = _recorded_name(added, source)
        is_on_cpu = known.lane is Lane.CPU
        number = len(self._columns)
        if added.is_span:
            self.spans.add(number)
        if source == EventSource.MODULE and added.scope is not None:
            self.module_calls.add(number)
        if known.lane is Lane.UNKNOWN:
            self.unknown_lanes.add(number)
        columns: dict[str, int] = {
            "name": self._texts.setdefault(label, len(self._texts)),
            "kind": _row_kind(added.phase, is_memory),
            "scope": SCOPES.get(added.scope or "", RecordScope.FUNCTION),
            "source": source,
            "step_number": added.step_number,
            "flags": EventFlag.ASYNC if added.phase == "b" else EventFlag.NONE,
            "lane": known.lane,
            "activity": known.activity if is_on_cpu else device_activity(added.name, known),
        }
        self._columns.append([columns[column] for column in TYPE_COLUMNS])
        self.numbers[added] = number
        return number

    def columns(self, event_type: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The columns of events, given the type of each."""
        table = np.array(self._columns, np.int64).reshape(-1, len(TYPE_COLUMNS))
        return dict(zip(TYPE_COLUMNS, table[event_type].T, strict=True))


def _source(added: EventType) -> int:
    """The source that events of a type say or, without one, that their category has."""
    if added.source in SOURCES:
        return SOURCES[added.source]
    if added.category == "python_function":
        return EventSource.MODULE if added.name.startswith(MODULE) else EventSource.PYTHON_CALL
    is_annotation = added.category == "user_annotation"
    return EventSource.RECORD_FUNCTION if is_annotation else EventSource.TORCH


def _recorded_name(added: EventType, source: int) -> str:
    """The name of a range as it was recorded: a trace adds the number of a step to its name, and
    names one without a name as torch.profiler does.
    """
    if added.step_number < 0:
        return added.name
    if source == EventSource.STEP and added.name.startswith(PROFILER_STEP):
        return UNNAMED_STEP
    return added.name.removesuffix(f"#{added.step_number}")


def _row_kind(phase: str, is_memory: bool) -> RowKind:
    if phase in "XbB":
        return RowKind.RANGE
    return RowKind.MEMORY if is_memory else RowKind.MARK


class OptionalColumns:
    """The values of columns that not all events have, by column.

    Args:
        texts: the numbers of all texts of the trace, which get the texts in these columns.
    """

    def __init__(self, texts: dict[str, int]) -> None:
        self._rows: dict[str, array[int]] = {}
        self._values: dict[str, array[int]] = {}
        self._texts = texts

    def add(self, args: dict[str, Any], row: int) -> None:
        """Add the values that the arguments of an event have; those of another type are passed
        over.
        """
        for argument in OPTIONAL_COLUMNS.keys() & args:
            column, kind = OPTIONAL_COLUMNS[argument]
            value = args[argument]
            if kind is not int and isinstance(value, kind):
                text = value if kind is str else json.dumps(value)
                self._append(column, row, self._texts.setdefault(text, len(self._texts)))
            elif isinstance(value, kind) and abs(value) < MAX_VALUE:
                self._append(column, row, value)

    def _append(self, column: str, row: int, value: int) -> None:
        self._rows.setdefault(column, array("q")).append(row)
        self._values.setdefault(column, array("q")).append(value)

    def columns(self, position: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The columns that have values, given the position of each row in them."""
        columns = {}
        for name, rows in self._rows.items():
            columns[name] = np.full(len(position), _EMPTY[name], np.int64)
            columns[name][position[np.array(rows)]] = np.array(self._values[name])
        return columns
