"""The columns of a trace's events, but for times: those that all events of a type share, and those
that not all events have.

A trace has a million events and some hundred types of them, so that what follows from the name,
category, phase and scope of an event is worked out once a type.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.columns import COLUMNS
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, RowKind
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
COMPILATION = "torch.compile"
PYTORCH_STEP = "ProfilerStep#"
SCOPES = {scope.name: int(scope) for scope in RecordScope}
_EMPTY = {column.name: column.empty for column in COLUMNS}
_STEP = re.compile(r"(.+)#(\d{1,18})")


class EventTypes:
    """The types of a trace's events, numbered.

    Args:
        texts: the numbers of all texts of the trace, which get the names of events.
    """

    def __init__(self, texts: dict[str, int]) -> None:
        self.numbers: dict[tuple[Any, ...], int] = {}
        """The types by name, category, phase, scope, and whether they are spans."""
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

    def add(
        self,
        name: str,
        category: str,
        phase: str,
        scope: str | None,
        *,
        is_span: bool,
        is_memory: bool,
    ) -> int | None:
        """The number of a new type; None if its slices are no part of the program."""
        if category == PROFILER_CATEGORY:
            return None
        known = known_category(category if isinstance(category, str) else "")
        step = None if is_span else _step(name, category, known.lane)
        label = step[1] if step else name
        source = EventSource.STEP if step else _source(name, category)
        is_on_cpu = known.lane is Lane.CPU
        number = len(self._columns)
        if is_span:
            self.spans.add(number)
        if source == EventSource.MODULE and scope is not None:
            self.module_calls.add(number)
        if known.lane is Lane.UNKNOWN:
            self.unknown_lanes.add(number)
        columns: dict[str, int] = {
            "name": self._texts.setdefault(label, len(self._texts)),
            "kind": _row_kind(phase, is_memory),
            "scope": SCOPES.get(scope or "", RecordScope.FUNCTION),
            "source": source,
            "step_number": int(step[2]) if step else -1,
            "flags": EventFlag.ASYNC if phase == "b" else EventFlag.NONE,
            "lane": known.lane,
            "activity": known.activity if is_on_cpu else device_activity(name, known),
        }
        self._columns.append([columns[column] for column in TYPE_COLUMNS])
        self.numbers[name, category, phase, scope, is_span] = number
        return number

    def columns(self, event_type: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The columns of events, given the type of each."""
        table = np.array(self._columns, np.int64).reshape(-1, len(TYPE_COLUMNS))
        return dict(zip(TYPE_COLUMNS, table[event_type].T, strict=True))


def _step(name: str, category: str, lane: Lane) -> re.Match[str] | None:
    """The label and number in the name of a step; None if it isn't a step."""
    is_step = name.startswith(PYTORCH_STEP) and lane is not Lane.DEVICE
    return _STEP.fullmatch(name) if category == "user_annotation" or is_step else None


def _row_kind(phase: str, is_memory: bool) -> RowKind:
    if phase in "XbB":
        return RowKind.RANGE
    return RowKind.MEMORY if is_memory else RowKind.MARK


def _source(name: str, category: str) -> int:
    if name.startswith(COMPILATION):
        return EventSource.COMPILATION
    if category == "python_function":
        return EventSource.MODULE if name.startswith(MODULE) else EventSource.PYTHON_CALL
    return EventSource.RECORD_FUNCTION if category == "user_annotation" else EventSource.TORCH


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
