"""The events of a Chrome trace, read in parts, and the batch that they make, with only the columns that a report shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.forward_links import NODES_PREFIX
from otel_recfn.model.batch import Batch, empty_column
from otel_recfn.model.columns import COLUMNS, Track
from otel_recfn.model.events import ORDINAL_BITS, EventFlag, EventSource, RecordScope, RowKind
from otel_recfn.report.nesting import Nested, Slices, nested_by_time, open_at

MOST_US = 4e15
"""The latest time in a trace, after 126 years: added to the base, later ones would not fit 64 bits of nanoseconds."""
ON_DEVICE = frozenset(["kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"])
"""The categories of slices that ran on a GPU."""
OF_THE_PROFILER = "Trace"
"""The category of slices that tell when the profiler itself ran."""
ARROWS = "fwdbwd"
"""The category of arrows from forward operators to their backward nodes."""
THREAD = "thread "
"""The beginning of the names of threads that Python doesn't know."""
MODULE, COMPILATION = "nn.Module: ", "torch.compile"
SCOPES = {scope.name: int(scope) for scope in RecordScope}
RARE_COLUMNS: dict[str, tuple[str, Any]] = {
    "CPU time (ns)": ("cpu_time_ns", int),
    "Bytes": ("nbytes", int),
    "Call stack": ("stack", str),
    "Call site": ("call_site", str),
    "Attributes": ("attributes", dict),
}
"""The columns that few events have, by the name of the argument, each with the type of its values."""
MOST_NS = 1 << 62
SLICES = frozenset("XbiI")
NO_ARGUMENTS: dict[str, Any] = {}
_STEP = re.compile(r"(.+)#(\d{1,18})")


Row = tuple[float, float, int, int, int]
"""The begin and length in microseconds, the thread, the sort, and the order where times are equal."""
SORT = ("name", "kind", "scope", "source", "step_number", "device", "flags")
"""The columns that are the same for all events of a sort: of one name, category, phase and scope."""


class TraceEvents:
    """The rows of a trace while it is read, as numbers: a million events as objects would take a gigabyte."""

    def __init__(self) -> None:
        self.base_ns: Any = None
        """The Unix time that the trace's times count from, if an event says it; else None."""
        self._parts = [np.zeros((0, 5), np.int64)]
        self.count = 0
        self._sorts: dict[tuple[Any, ...], int] = {}
        self._sort_columns: list[tuple[int, ...]] = []
        self._steps: set[str] = set()
        self._rare_columns: dict[str, dict[int, int]] = {}
        """The values of columns that few rows have, by column and row."""
        self._texts = {"": 0}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._labels: dict[tuple[Any, Any], str] = {}
        self._open: dict[Any, int] = {}
        """The rows of asynchronous ranges that have not ended, by their ids."""
        self._ends: dict[int, int] = {}
        """The ends of asynchronous ranges, by row."""
        self._forward: dict[Any, int] = {}
        """The threads of forward operators, by the ids of arrows."""
        self._backward: list[tuple[int, int, Any]] = []
        """The thread and time of the end of each arrow, and its id."""

    def add(self, events: Iterable[Any]) -> None:
        """Add a part of the events; those that can't be read, and slices of the profiler itself, are left out."""
        rows: list[Row] = []
        for event in events:
            try:
                phase = event["ph"]
                if phase in SLICES:
                    rows.append(self._slice_row(event, phase, self.count + len(rows)))
                else:
                    self._add_other_event(event, phase)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
                continue
        self._parts.append(_in_nanoseconds(rows))
        self.count += len(rows)

    def _slice_row(self, event: dict[str, Any], phase: str, row: int) -> Row:
        args = event.get("args") or NO_ARGUMENTS
        us, length_us = event["ts"], event.get("dur", 0.0) if phase == "X" else 0.0
        if not (-MOST_US < us < MOST_US and length_us < MOST_US):
            raise ValueError(us)
        known = event["name"], event.get("cat", ""), phase, args.get("Scope")
        sort = self._sorts.get(known)
        if sort is None:
            sort = self._sorts[known] = self._new_sort(*known, args)
        order, thread = args.get("Event id") or args.get("Ev Idx"), self._thread(event)
        if not RARE_COLUMNS.keys().isdisjoint(args):
            self._add_rare_columns(args, row)
        if phase == "b":
            self._open[_async_id(event)] = row
        return (
            us,
            length_us,
            thread,
            sort,
            order if isinstance(order, int) and 0 < order < MOST_NS else row,
        )

    def _add_other_event(self, event: dict[str, Any], phase: str) -> None:
        """Add what an event says of a thread, of the end of an asynchronous range, or of an end of an arrow."""
        if phase == "M":
            self._add_metadata(event)
        elif phase == "e":
            self._ends[self._open.pop(_async_id(event))] = _nanoseconds(event["ts"])
        elif phase == "s" and event["cat"] == ARROWS:
            self._forward[event["id"]] = self._thread(event)
        elif phase == "f" and event["cat"] == ARROWS:
            self._backward.append((self._thread(event), _nanoseconds(event["ts"]), event["id"]))

    def _add_rare_columns(self, args: dict[str, Any], row: int) -> None:
        """Add the columns that few events have, from the arguments of one."""
        for argument in RARE_COLUMNS.keys() & args:
            (column, kind), value = RARE_COLUMNS[argument], args[argument]
            if kind is not int and isinstance(value, kind):
                self._rare_columns.setdefault(column, {})[row] = self._text(
                    value if kind is str else json.dumps(value)
                )
            elif isinstance(value, kind) and abs(value) < MOST_NS:
                self._rare_columns.setdefault(column, {})[row] = value

    def _new_sort(
        self, name: str, category: str, phase: str, scope: str | None, args: dict[str, Any]
    ) -> int:
        is_span_of_a_step = name in self._steps and "span_id" in args
        if category == OF_THE_PROFILER or is_span_of_a_step:
            raise ValueError(category)
        step = _STEP.fullmatch(name) if category == "user_annotation" else None
        kind = (
            RowKind.RANGE if phase in "Xb" else RowKind.MEMORY if "Bytes" in args else RowKind.MARK
        )
        source = EventSource.STEP if step else _source(name, category)
        if step:
            self._steps.add(step[1])
        self._sort_columns.append(
            (
                self._text(step[1] if step else name),
                kind,
                SCOPES.get(scope or "", RecordScope.FUNCTION),
                source,
                int(step[2]) if step else -1,
                self._text("GPU") if category in ON_DEVICE else 0,
                EventFlag.ASYNC if phase == "b" else EventFlag.NONE,
            )
        )
        return len(self._sort_columns) - 1

    def _add_metadata(self, event: dict[str, Any]) -> None:
        of = event["tid"] if event["name"] == "thread_name" else event["name"]
        self._labels[event["pid"], of] = str(event["args"]["name"])
        self.base_ns = event["args"].get("baseTimeNanoseconds", self.base_ns)

    def _thread(self, event: dict[str, Any]) -> int:
        return self._threads.setdefault((event.get("pid"), event.get("tid")), len(self._threads))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    @property
    def script(self) -> str:
        """The script of Python that ran; empty if the trace names none."""
        named = [
            name
            for (_, of), name in self._labels.items()
            if of == "process_name" and name.endswith(".py")
        ]
        return named[0] if named else ""

    def batch(self, base_ns: int) -> Batch:
        """The batch of all rows, a child before its parent.

        Args:
            base_ns: the Unix time that times of the trace count from.
        """
        start, end, thread, sort, order = np.concatenate(self._parts).T
        end[list(self._ends)] = np.maximum(list(self._ends.values()), start[list(self._ends)])
        ordered = np.lexsort((order, -end, start, thread))
        start, end, thread, sort = [column[ordered] for column in (start, end, thread, sort)]
        columns = np.array(self._sort_columns, np.int64).reshape(-1, len(SORT))[sort].T
        rows: dict[str, NDArray[Any]] = dict(zip(SORT, columns, strict=True))
        slices = Slices(start, end, thread, (rows["kind"] == RowKind.RANGE) & (rows["flags"] == 0))
        nested = nested_by_time(slices)
        self._put_backward_where_it_was_launched(slices, nested, rows["name"])
        event_id = (thread + 1 << ORDINAL_BITS) + 1 + np.arange(len(start))
        rows["flags"] |= np.where(nested.crosses, int(EventFlag.CROSSING), 0)
        rows |= {
            "event_id": event_id,
            "parent": np.where(nested.above >= 0, event_id[nested.above], 0),
        }
        rows |= {"start_ns": start + base_ns, "end_ns": nested.end + base_ns, "thread": thread}
        place = np.argsort(ordered)
        for name, told in self._rare_columns.items():
            rows[name] = np.full(
                len(place),
                next(column.empty for column in COLUMNS if column.name == name),
                np.int64,
            )
            rows[name][place[list(told)]] = list(told.values())
        return self._batch(rows, np.lexsort((-event_id, nested.end)))

    def _put_backward_where_it_was_launched(
        self, slices: Slices, nested: Nested, name: NDArray[np.int64]
    ) -> None:
        """Put the outermost nodes of autograd's threads into the slice that was open in the thread of their forward operators,
        which waits for them. A node without an arrow, which adds up gradients, goes where the one before it goes."""
        arrows: dict[int, list[tuple[int, int]]] = {}
        is_node = np.array([text.startswith(NODES_PREFIX) for text in self._texts], np.bool_)
        labels = [self._labels.get(key, THREAD) for key in self._threads]
        for thread, at, number in self._backward:
            if self._forward.get(number, thread) != thread and labels[thread].startswith(THREAD):
                arrows.setdefault(thread, []).append((at, self._forward[number]))
        for thread, of_thread in arrows.items():
            times, forward = np.array(sorted(of_thread), np.int64).T
            nodes = np.flatnonzero(is_node[name] & (slices.thread == thread) & (nested.above < 0))
            launchers = forward[
                np.maximum(np.searchsorted(times, slices.start[nodes], side="right") - 1, 0)
            ]
            for launcher in {*launchers.tolist()}:
                launched = nodes[launchers == launcher]
                nested.above[launched] = open_at(slices, nested, launcher, slices.start[launched])

    def _batch(self, rows: dict[str, NDArray[Any]], closing: NDArray[np.int64]) -> Batch:
        """The batch of these rows, given the order in which they closed."""
        columns: dict[str, Any] = {
            column.name: rows[column.name][closing].astype(column.dtype)
            if column.name in rows
            else empty_column(column.dtype, len(closing), column.empty)
            for column in COLUMNS
        }
        return Batch(**columns, names=list(self._texts), tracks=self._tracks())

    def _tracks(self) -> list[Track]:
        """The threads, in the order of their first events."""
        tracks = []
        for number, (pid, tid) in enumerate(self._threads, 1):
            native_id = tid if isinstance(tid, int) else number
            tracks.append(
                Track(
                    number,
                    native_id,
                    native_id,
                    0,
                    self._labels.get((pid, tid)) or f"{THREAD}{tid}",
                )
            )
        return tracks


def _in_nanoseconds(rows: list[Row]) -> NDArray[np.int64]:
    """The rows as columns: begin, end, thread, sort and order."""
    numbers = np.zeros((len(rows), 5), np.int64)
    if rows:
        us, length_us, *others = zip(*rows, strict=True)
        numbers[:, 0] = np.rint(np.array(us, np.float64) * 1000)
        numbers[:, 1] = numbers[:, 0] + np.maximum(
            np.rint(np.array(length_us, np.float64) * 1000), 0
        ).astype(np.int64)
        numbers[:, 2:] = np.array(others, np.int64).T
    return numbers


def _nanoseconds(us: float) -> int:
    if not -MOST_US < us < MOST_US:
        raise ValueError(us)
    return round(us * 1000)


def _async_id(event: dict[str, Any]) -> tuple[str, str]:
    local = event.get("id2")
    return str(event.get("pid")), str(local if local is not None else event.get("id"))


def _source(name: str, category: str) -> int:
    if name.startswith(COMPILATION):
        return EventSource.COMPILATION
    if category == "python_function":
        return EventSource.MODULE if name.startswith(MODULE) else EventSource.PYTHON_CALL
    return EventSource.RECORD_FUNCTION if category == "user_annotation" else EventSource.TORCH
