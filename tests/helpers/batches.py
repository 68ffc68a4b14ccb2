"""Hand-made batches: a sink is tested from these alone, without a recorder and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from otel_recfn.model.batch import Batch, OpenedColumns
from otel_recfn.model.columns import (
    COLUMN_TYPES,
    COLUMNS,
    NO_CONTEXT,
    OPENED_COLUMNS,
    TEXT_COLUMNS,
    SpanContextRef,
    Track,
)
from otel_recfn.model.events import EventSource, make_event_id

MAIN_THREAD = Track(number=1, thread_id=1, native_id=1001, ident=140_001, name="MainThread")
WORKER_THREAD = Track(number=2, thread_id=2, native_id=1002, ident=0, name="")
BASE_NS = 1_699_999_999_123_456_789

WORKED_OUT = {"event_id", "start_ns", "end_ns", "end_thread", "root"}
"""Columns whose default follows from the row's others, or from its place."""
DEFAULTS: dict[str, Any] = {
    **{
        column.name: "" if column.value is str else column.empty
        for column in COLUMNS
        if column.name not in WORKED_OUT
    },
    "name": "op",
    "thread": MAIN_THREAD,
    "context": NO_CONTEXT,
}


class _Table:
    """The distinct values seen, each with its index."""

    def __init__(self, *first: Any) -> None:
        self.values: list[Any] = list(first)
        self._index = {value: number for number, value in enumerate(first)}

    def index(self, value: Any) -> int:
        if value not in self._index:
            self._index[value] = len(self.values)
            self.values.append(value)
        return self._index[value]


def make_batch(rows: Sequence[dict[str, Any]], opened: Sequence[dict[str, Any]] = ()) -> Batch:
    """A batch of the given rows, in the given order.

    A row's keys are the columns; texts are strings, threads are a Track, contexts SpanContextRef.
    What a row leaves out has the value of DEFAULTS, and: ``event_id`` is
    ``make_event_id(thread.number, row number + 1)``; ``start_ns`` is BASE_NS plus 1,000 per row and
    ``end_ns`` 500 later; ``end_thread`` is ``thread``; ``root`` is what following the parents
    within the batch leads to. ``opened`` are the fields of Opened, with Track and SpanContextRef as
    values.
    """
    names = _Table("")
    tracks = _Table()
    contexts = _Table(NO_CONTEXT)
    full = _with_roots([_with_defaults(row, number) for number, row in enumerate(rows)])
    for row in full:
        for column in TEXT_COLUMNS:
            row[column] = names.index(row[column])
        for column in ("thread", "end_thread"):
            row[column] = tracks.index(row[column])
        row["context"] = contexts.index(row["context"])
    opened_columns = [_opened(item, names, tracks, contexts) for item in opened]
    told = {
        name: np.array([item[name] for item in opened_columns], COLUMN_TYPES[name])
        for name in OPENED_COLUMNS
    }
    columns = {
        name: np.array([row[name] for row in full], dtype=dtype)
        for name, dtype in COLUMN_TYPES.items()
    }
    tables = {"names": names.values, "tracks": tracks.values, "contexts": contexts.values}
    return Batch(**columns, **tables, opened=OpenedColumns(told, names.values))


def open_for_long(ranges: Batch) -> Batch:
    """A batch without rows that says that these ranges have been open for long."""
    return replace(make_batch([]), long_open=ranges)


def context(trace_id: int, span_id: int, flags: int = 1) -> SpanContextRef:
    """A current span, sampled unless ``flags`` says otherwise."""
    return SpanContextRef(trace_id, span_id, flags)


def _with_defaults(row: dict[str, Any], number: int) -> dict[str, Any]:
    unknown = set(row) - set(COLUMN_TYPES)
    assert not unknown, f"no such columns: {unknown}"
    full = {**DEFAULTS, **row}
    full.setdefault("event_id", make_event_id(full["thread"].number, number + 1))
    full.setdefault("start_ns", BASE_NS + 1_000 * number)
    full.setdefault("end_ns", full["start_ns"] + 500)
    full.setdefault("end_thread", full["thread"])
    return full


def _with_roots(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    parents = {row["event_id"]: row["parent"] for row in rows}
    for row in rows:
        root = row["event_id"]
        while parents.get(root):
            root = parents[root]
        row.setdefault("root", root)
    return rows


def _opened(
    item: dict[str, Any], names: _Table, tracks: _Table, contexts: _Table
) -> dict[str, Any]:
    full = {"source": EventSource.TORCH, "start_ns": BASE_NS, "flags": 0, **item}
    return {
        **full,
        "name": names.index(full.get("name", "op")),
        "thread": tracks.index(full.get("thread", MAIN_THREAD)),
        "context": contexts.index(full.get("context", NO_CONTEXT)),
    }
