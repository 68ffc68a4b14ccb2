"""Events of a Chrome trace, one after the other, and the batch that they make."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch, empty_column
from otel_recfn.model.columns import COLUMNS, Track
from otel_recfn.model.events import EventFlag, EventKind, EventSource, RecordScope, make_event_id

Numbers = NDArray[np.int64]
MOST_US = 4e15
"""Times later than in 126 years are none, and would not fit 64 bits of nanoseconds with what they count from."""
ROUNDING_NS = 2
"""By so much a range may end after the one that it lies in, where a trace has times as decimals."""
ON_DEVICE = frozenset(["kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"])
"""Categories of what a GPU did."""
OF_THE_PROFILER = "Trace"
"""The category of slices that tell when the profiler itself ran."""
BACKWARD, MODULE, COMPILATION = "autograd::engine::evaluate_function: ", "nn.Module: ", "torch.compile"
SCOPES = {scope.name: int(scope) for scope in RecordScope}
ARGUMENTS = {column.argument: column for column in COLUMNS if column.argument and column.name != "node_id"}
LARGEST = (1 << 63) - 1
_STEP = re.compile(r"(.+)#(\d{1,18})")


class TraceEvents:
    """The rows of a trace while it is parsed. Each event is given up as soon as its columns are filled: a million of them
    would take a gigabyte."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {
            name: [] for name in ("start_ns", "end_ns", "thread", "name", "kind", "scope", "source", "flags", "order")
        }
        self._told: dict[str, dict[int, int]] = {}
        """Of columns that few rows have: the values by row."""
        self._texts = {"": 0}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._labels: dict[tuple[Any, Any], str] = {}
        self._open: dict[Any, int] = {}
        """Asynchronous ranges, by their ids."""

    def take(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """What JSON's parser calls with each object: None of an event, which is a row now; else the object."""
        phase = event.get("ph")
        if phase is None or "name" not in event:
            return event
        if phase == "M":
            self._name_track(event)
        elif phase in ("X", "b", "i", "I") and event.get("cat") != OF_THE_PROFILER:
            self._add(event, phase)
        elif phase == "e":
            self._end(event)
        return None

    def _name_track(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        told = {"thread_name": "name", "process_name": "name", "process_labels": "labels"}.get(str(event["name"]))
        if told is not None and isinstance(args, dict):
            of = str(event.get("tid")) if event["name"] == "thread_name" else event["name"]
            self._labels[str(event.get("pid")), of] = str(args.get(told, ""))

    def _add(self, event: dict[str, Any], phase: str) -> None:
        """A row, if the event has times."""
        start_ns = _nanoseconds(event.get("ts"))
        length_ns = _nanoseconds(event.get("dur", 0)) if phase == "X" else 0
        if start_ns is None or length_ns is None:
            return
        args = event.get("args")
        args, row = args if isinstance(args, dict) else {}, len(self._rows["name"])
        name, category = str(event["name"]), str(event.get("cat", ""))
        step = _STEP.fullmatch(name) if category == "user_annotation" else None
        if step:
            name = step[1]
            self._told.setdefault("step_number", {})[row] = int(step[2])
        kind = EventKind.RANGE if phase in "Xb" else EventKind.MEMORY if "Bytes" in args else EventKind.MARK
        key = str(event.get("pid")), str(event.get("tid"))
        order = args.get("Event id", args.get("Ev Idx", 0))
        self._tell(row, args)
        if category in ON_DEVICE:
            self._told.setdefault("device", {})[row] = self._text(f"GPU {args.get('device', event.get('pid'))}")
        if phase == "b":
            self._open[_async_id(event)] = row
        values = {
            "start_ns": start_ns,
            "end_ns": start_ns + max(0, length_ns),
            "thread": self._threads.setdefault(key, len(self._threads)),
            "name": self._text(name),
            "kind": int(kind),
            "scope": _scope(name, category, args),
            "source": _source(name, category, bool(step)),
            "flags": (EventFlag.ASYNC if phase == "b" else 0) | (EventFlag.PARTIAL if args.get("Partial") else 0),
            "order": order if isinstance(order, int) and 0 <= order <= LARGEST else row,
        }
        for column, value in values.items():
            self._rows[column].append(int(value))

    def _end(self, event: dict[str, Any]) -> None:
        row, end_ns = self._open.pop(_async_id(event), None), _nanoseconds(event.get("ts"))
        if row is not None and end_ns is not None:
            self._rows["end_ns"][row] = max(end_ns, self._rows["end_ns"][row])

    def _tell(self, row: int, args: dict[str, Any]) -> None:
        """The columns that are args of events."""
        for argument, value in args.items():
            column = ARGUMENTS.get(argument)
            if argument == "Bytes":
                self._told.setdefault("nbytes", {})[row] = value if isinstance(value, int) and abs(value) <= LARGEST else 0
            elif column is not None and column.value is str:
                text = json.dumps(value, separators=(",", ":"), ensure_ascii=False) if column.is_json else str(value)
                self._told.setdefault(column.name, {})[row] = self._text(text)
            elif column is not None and isinstance(value, int) and -1 <= value <= LARGEST:
                self._told.setdefault(column.name, {})[row] = value

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    @property
    def script(self) -> str:
        """What ran, where it is a script of Python's; else empty."""
        named = [name for (_, of), name in self._labels.items() if of == "process_name" and name.endswith(".py")]
        return named[0] if named else ""

    def batch(self, base_ns: int) -> Batch:
        """All rows, a child before its parent.

        Args:
            base_ns: what times of the trace count from.
        """
        rows: dict[str, NDArray[Any]] = {name: np.array(values, np.int64) for name, values in self._rows.items()}
        nested = _Nesting(rows)
        rows |= {"event_id": nested.event_id, "parent": nested.parent, "root": nested.root, "flags": nested.flags}
        rows |= {"start_ns": rows["start_ns"] + base_ns, "end_ns": nested.end + base_ns, "end_thread": rows["thread"]}
        columns: dict[str, Any] = {}
        for column in COLUMNS:
            told = self._told.get(column.name)
            if column.name in rows:
                columns[column.name] = rows[column.name].astype(column.dtype)[nested.closing]
            elif told:
                values = np.full(len(nested.closing), column.empty, column.dtype)
                values[list(told)] = list(told.values())
                columns[column.name] = values[nested.closing]
            else:
                columns[column.name] = empty_column(column.dtype, len(nested.closing), column.empty)
        return Batch(**columns, names=list(self._texts), tracks=self._tracks())

    def _tracks(self) -> list[Track]:
        """The threads, in the order in which they first said something."""
        of_ranges = {thread for thread, kind in zip(self._rows["thread"], self._rows["kind"], strict=True) if not kind}
        several = len({pid for (pid, _), thread in self._threads.items() if thread in of_ranges}) > 1
        tracks = []
        for number, (pid, tid) in enumerate(self._threads, 1):
            name = self._labels.get((pid, tid)) or f"thread {tid}"
            name_of_pid = f"{self._labels.get((pid, 'process_name'), 'process')} {pid}"
            process = self._labels.get((pid, "process_labels")) or name_of_pid
            native_id = int(tid) if tid.isdecimal() and len(tid) < 19 else number
            tracks.append(Track(number, native_id, native_id, 0, f"{process}: {name}" if several else name))
        return tracks


def _nanoseconds(us: Any) -> int | None:
    """None where it is no time."""
    if isinstance(us, str):
        try:
            us = float(us)
        except ValueError:
            return None
    return round(us * 1000) if isinstance(us, (int, float)) and -MOST_US < us < MOST_US else None


def _async_id(event: dict[str, Any]) -> Any:
    local = event.get("id2")
    return str(event.get("pid")), str(local if local is not None else event.get("id"))


def _scope(name: str, category: str, args: dict[str, Any]) -> int:
    told = SCOPES.get(str(args.get("Scope")))
    if told is not None:
        return told
    if name.startswith(BACKWARD):
        return RecordScope.BACKWARD_FUNCTION
    return RecordScope.USER_SCOPE if "user_annotation" in category else RecordScope.FUNCTION


def _source(name: str, category: str, is_step: bool) -> int:
    if is_step:
        return EventSource.STEP
    if name.startswith(COMPILATION):
        return EventSource.COMPILATION
    if category == "python_function":
        return EventSource.MODULE if name.startswith(MODULE) else EventSource.PYTHON_CALL
    return EventSource.RECORD_FUNCTION if category == "user_annotation" else EventSource.TORCH


class _Nesting:
    """What lies in what, by time: within a thread, what began and ended inside another range is inside it.

    Args:
        rows: start, end, thread, flags, and the order of begins where times are equal.
    """

    def __init__(self, rows: dict[str, Numbers]) -> None:
        count, start, flags = len(rows["name"]), rows["start_ns"].tolist(), rows["flags"].tolist()
        end, thread = rows["end_ns"].tolist(), rows["thread"].tolist()
        ids, parent, root = [0] * count, [0] * count, [0] * count
        order = np.lexsort((rows["order"], -rows["end_ns"], rows["start_ns"], rows["thread"]))
        around: list[int] = []
        last = -1
        for ordinal, row in enumerate(order.tolist(), 1):
            if thread[row] != last:
                last = thread[row]
                around.clear()
            while around and end[around[-1]] <= start[row]:
                around.pop()
            if around and 0 < end[row] - end[around[-1]] <= ROUNDING_NS:
                end[row] = end[around[-1]]
            inside = next((each for each in reversed(around) if end[each] >= end[row]), -1)
            ids[row] = make_event_id(last + 1, ordinal)
            parent[row], root[row] = (ids[inside], root[inside]) if inside >= 0 else (0, ids[row])
            if around and inside != around[-1]:
                flags[row] |= int(EventFlag.CROSSING)
            elif rows["kind"][row] == EventKind.RANGE and not flags[row] & EventFlag.ASYNC:
                around.append(row)
        self.event_id, self.parent, self.root = np.array(ids, np.uint64), np.array(parent, np.uint64), np.array(root, np.uint64)
        self.flags, self.end = np.array(flags, np.int64), np.array(end, np.int64)
        self.closing: Sequence[int] | Numbers = np.lexsort((-self.event_id.astype(np.int64), self.end))
        """The rows in the order in which they ended."""
