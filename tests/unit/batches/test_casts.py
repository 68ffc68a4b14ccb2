"""No stage has numpy cast a whole column: that costs more than what is done with it, and numpy
crashes if it finds no memory for the buffer in which it casts more than 8,192 rows.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider

from helpers.batches import WORKER_THREAD, context, make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.build_tree import build_tree
from otel_recfn.batches.merging import merged
from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected, Selection
from otel_recfn.model.batch import Batch, OpenedColumns
from otel_recfn.model.columns import COLUMN_TYPES
from otel_recfn.model.events import (
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    RowKind,
    make_event_id,
)
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.chrome.trace_file import ChromeTraceFile
from otel_recfn.sinks.metrics.sums import SeriesTable
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink

pytestmark = [
    pytest.mark.one_python,
    pytest.mark.skipif(not hasattr(np.add, "resolve_dtypes"), reason="numpy before 1.25"),
]
ALL_SOURCES = RECORD_FUNCTIONS | {EventSource.MODULE, EventSource.PYTHON_CALL}


class Watched(np.ndarray[Any, Any]):
    """An array that notes where an operation casts it, or an array that was made of it."""

    casts: list[str] = []  # noqa: RUF012 - one list, as arrays are made by numpy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method == "__call__":
            given = [_type_of(each) for each in inputs]
            used = ufunc.resolve_dtypes((*given, *[None] * ufunc.nout))
            for each, had, has in zip(inputs, given, used, strict=False):
                if np.ndim(each) and had != has:
                    where = traceback.extract_stack(sys._getframe(1), 1)[0]
                    place = f"{Path(where.filename).name}:{where.lineno}"
                    self.casts.append(f"{place}: {ufunc.__name__} casts {had} to {has}")
        keywords["out"] = tuple(map(_plain, keywords["out"])) if keywords.get("out") else None
        result = getattr(ufunc, method)(
            *map(_plain, inputs), **{name: each for name, each in keywords.items() if each}
        )
        return _watched(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return _watched(super().__array_function__(function, types, arguments, keywords))


def _type_of(value: Any) -> Any:
    if type(value) in (bool, int, float):
        return np.dtype(bool) if type(value) is bool else type(value)
    return np.asarray(value).dtype


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Watched) else value


def _watched(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_watched, value))
    return value.view(Watched) if type(value) is np.ndarray else value


@pytest.fixture
def casts() -> Iterator[list[str]]:
    """The casts."""
    Watched.casts.clear()
    yield Watched.casts
    Watched.casts.clear()


def watched(batch: Batch) -> Batch:
    """The batch with columns that note casts."""
    columns = {name: getattr(batch, name).view(Watched) for name in COLUMN_TYPES}
    opened = {name: each.view(Watched) for name, each in batch.opened.columns.items()}
    return replace(batch, **columns, opened=OpenedColumns(opened, batch.names))


def a_batch() -> Batch:
    """A batch with rows of all kinds, of which the last one is a copy of an open range."""
    first = make_event_id(1, 0)
    call = {"source": EventSource.PYTHON_CALL, "scope": RecordScope.USER_SCOPE}
    rows: list[dict[str, Any]] = [
        {"event_id": first + 3, "parent": first + 2, "sequence_nr": 5, "shapes": "[[2]]"},
        {"event_id": first + 4, "parent": first + 2, "kind": RowKind.MARK},
        {"event_id": first + 5, "kind": RowKind.MEMORY, "nbytes": 8, "device": "cpu"},
        {
            "event_id": first + 2,
            "parent": first + 1,
            "caller": first + 1,
            **call,
            "name": "b.py(2): g",
        },
        {
            "event_id": first + 6,
            "name": "nn.Module: Linear_0",
            "source": EventSource.MODULE,
            "caller": first + 2,
            "step_number": 3,
        },
        {
            "event_id": first + 7,
            "scope": RecordScope.BACKWARD_FUNCTION,
            "sequence_nr": 5,
            "forward_thread_id": 1,
            "end_thread": WORKER_THREAD,
            "flags": EventFlag.ASYNC | EventFlag.IN_COMPILATION,
        },
        {"event_id": first + 8, "context": context(1, 2), "cpu_time_ns": 5},
        {"event_id": first + 1, **call, "name": "a.py(1): f"},
        {"event_id": first + 9, "name": "hangs", "flags": EventFlag.PARTIAL},
    ]
    made = make_batch(rows, [{"event_id": first + 9}, {"event_id": first + 1}])
    return watched(replace(made, closed=len(rows) - 1))


def view(batch: Batch, tmp_path: Path) -> None:
    calls = PythonCalls(min_duration_ns=5)
    for selected in (
        Selected(sources=RECORD_FUNCTIONS | {EventSource.PYTHON_CALL}, calls=calls),
        Selected(sources=ALL_SOURCES, extras=Extra.MEMORY, profiler=1),
    ):
        selection = Selection(selected)
        selection.start_after(batch)
        selection.continue_after(batch)
        selection.view(batch)
        selection.view(batch, last=True, copies=True)


def put(batch: Batch, tmp_path: Path) -> None:
    capture = Capture(Selected(sources=ALL_SOURCES), [], buffer_bytes=1 << 20, open_range_s=1e-9)
    capture.put(batch, check_s=1e9)


def spans(batch: Batch, tmp_path: Path) -> None:
    for volume in (EVERY_RANGE, Volume(100, 50, 500)):
        sink = SpansSink(TracerProvider(shutdown_on_exit=False), None, volume)
        sink.write(replace(batch, long_open=batch))
        sink.close(PATIENCE_S)


def chrome(batch: Batch, tmp_path: Path) -> None:
    file = ChromeTraceFile(tmp_path / "trace.json")
    file.append(replace(batch, long_open=batch))
    file.show()
    file.append(batch)
    file.finish()
    file.close()


def metrics(batch: Batch, tmp_path: Path) -> None:
    SeriesTable().row_series(batch)


def profiles(batch: Batch, tmp_path: Path) -> None:
    rows = watched(merged([batch, batch]))
    for by in ("name", "thread", "module"):
        build_tree(rows, by)
    key_averages(rows, group_by_input_shape=True)


@pytest.mark.parametrize("stage", [view, put, spans, chrome, metrics, profiles])
def test_no_column_is_cast(
    stage: Callable[[Batch, Path], None], tmp_path: Path, casts: list[str]
) -> None:
    stage(a_batch(), tmp_path)
    assert not casts, "\n".join(sorted(set(casts)))


def test_casts_are_found(casts: list[str]) -> None:
    numbers = np.zeros(3, np.uint8).view(Watched)
    np.where(numbers == 1, numbers, np.uint8(2)) + np.uint8(1)
    assert not casts
    numbers == RowKind.RANGE  # noqa: B015 - as it is
    np.where(numbers == 1, numbers, np.uint8(2)) + np.zeros(3, np.int64)
    assert len(casts) == 2
