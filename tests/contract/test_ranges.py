"""Begin and end: which range lies in which, what a row says; recordings that start and stop
meanwhile.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from helpers import source_calls
from helpers.example_counts import one_in
from helpers.recording_helpers import (
    CROSSING,
    ERROR,
    PARTIAL,
    SOURCE,
    USER,
    Capture,
    Worker,
    by_name,
    check_laws,
)
from otel_recfn.model.batch import COLUMN_TYPES, NO_CONTEXT
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    ORDINAL_BITS,
    EventFlag,
    EventSource,
    RecordScope,
    RowKind,
    make_event_id,
)
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES, RecorderCounters


def test_a_row_says_what_was_recorded(capture: Capture) -> None:
    before = time.time_ns()
    event_id = source_calls.begin(
        "load", int(RecordScope.USER_SCOPE), int(EventSource.MODULE), "model.layer"
    )
    capture.end(event_id)
    after = time.time_ns()
    [row] = capture.finish()
    assert (row.event_id, row.handle) == (event_id, event_id)
    assert (row.name, row.module, row.error, row.shapes, row.dtypes) == (
        "load",
        "model.layer",
        "",
        "",
        "",
    )
    assert (row.kind, row.scope, row.source) == (
        RowKind.RANGE,
        RecordScope.USER_SCOPE,
        EventSource.MODULE,
    )
    assert (row.sequence_nr, row.forward_thread_id, row.debug_handle) == (-1, 0, -1)
    assert (row.parent, row.root, row.context, row.flags) == (
        0,
        event_id,
        NO_CONTEXT,
        EventFlag.BEGINS_STEP,
    )
    assert row.thread == row.end_thread
    slack = 1_000_000_000  # between the two clocks
    assert before - slack <= row.start_ns <= row.end_ns <= after + slack


def test_the_thread_of_a_row(capture: Capture) -> None:
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.thread.number == row.event_id >> ORDINAL_BITS
    assert row.thread.thread_id == row.thread_id == source_calls.current_thread_id()
    assert row.thread.ident == threading.get_ident()
    assert row.thread.native_id == threading.get_native_id()
    assert row.thread.name == threading.current_thread().name


def test_columns_have_their_types(capture: Capture) -> None:
    capture.end(capture.begin())
    for batch in (capture.recorder.drain(), capture.recorder.drain()):
        for name, dtype in COLUMN_TYPES.items():
            assert getattr(batch, name).dtype == np.dtype(dtype), name
            assert len(getattr(batch, name)) == len(batch)
        assert batch.names[0] == ""
        assert batch.contexts[0] == NO_CONTEXT


def test_zero_and_unknown_ids_are_ignored(capture: Capture) -> None:
    event_id = capture.begin()
    for wrong in (0, event_id + 1, make_event_id(9_999_999, 1), event_id + 12345):
        capture.end(wrong)
    capture.end(event_id)
    capture.end(event_id)
    capture.end(event_id, "Error: too late")
    [row] = capture.finish()
    assert (row.flags, row.error) == (0, "")


def test_an_error_marks_the_range(capture: Capture) -> None:
    capture.end(capture.begin(), "ValueError: first line\nsecond line")
    [row] = capture.finish()
    assert row.flags == ERROR
    assert row.error == "ValueError: first line\nsecond line"


def test_top_level_ranges_are_announced_when_they_begin(capture: Capture) -> None:
    outer = capture.begin("outer")
    inner = capture.begin("inner")
    batch = capture.recorder.drain()
    [opened] = batch.opened
    assert (opened.event_id, opened.name, opened.source) == (outer, "outer", SOURCE)
    assert batch.contexts[opened.context] == NO_CONTEXT
    assert batch.tracks[opened.thread].number == outer >> ORDINAL_BITS
    capture.end(inner)
    capture.end(outer)
    quick = capture.begin("quick")
    capture.end(quick)
    batch = capture.recorder.drain()
    assert [item.event_id for item in batch.opened] == [quick]
    assert [row.start_ns for row in batch.events() if row.event_id == outer] == [opened.start_ns]


def test_many_names(capture: Capture) -> None:
    """A program that makes a new name each step."""
    names = [f"step {index}" for index in range(20_000 // one_in())]
    for name in names:
        capture.end(capture.begin(name))
        if name.endswith("000"):
            capture.drain()
    capture.finish()
    assert [row.name for row in capture.rows()] == names


def test_batches_never_change(capture: Capture) -> None:
    capture.end(capture.begin("first"))
    batch = capture.recorder.drain()
    before = list(batch.events())
    for index in range(100):
        capture.end(capture.begin(f"later {index}"))
    capture.recorder.drain()
    assert list(batch.events()) == before


def test_scopes_select(recorder: Recorder) -> None:
    capture = Capture(recorder)
    recorder.start(1 << RecordScope.BACKWARD_FUNCTION, 1 << 20)
    assert source_calls.begin("user", USER, SOURCE) == 0
    assert source_calls.begin("module", USER, int(EventSource.MODULE)) != 0
    assert source_calls.begin("backward", int(RecordScope.BACKWARD_FUNCTION), SOURCE) != 0
    assert {row.name for row in capture.finish()} == {"module", "backward"}
    assert capture.counters() == RecorderCounters()


def test_nothing_is_recorded_before_start_and_after_stop(recorder: Recorder) -> None:
    before = recorder.counters()
    assert not source_calls.recording()
    assert source_calls.begin("before", USER, SOURCE) == 0
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    assert source_calls.recording()
    recorder.stop()
    assert not source_calls.recording()
    assert source_calls.begin("after", USER, SOURCE) == 0
    assert len(recorder.drain(close_open=True)) == 0
    assert recorder.counters() == before


def test_of_open_ranges_that_are_sealed_the_inner_one_ends_first(capture: Capture) -> None:
    """Of two that end at once, readers of times may take the inner one for the outer one."""
    ids = [capture.begin() for _ in range(3)]
    rows = {row.event_id: row for row in capture.drain(close_open=True)}
    outer, middle, inner = [rows[event_id].end_ns for event_id in ids]
    assert (outer - middle, middle - inner) == (1, 1)


def test_ends_are_taken_after_stop(capture: Capture) -> None:
    event_id = capture.begin()
    capture.recorder.stop()
    capture.end(event_id)
    [row] = capture.drain(close_open=True)
    assert row.flags == 0


def test_start_while_recording_changes_the_scopes_only(capture: Capture) -> None:
    outer = capture.begin("outer")
    capture.recorder.start(1 << USER, DEFAULT_BUFFER_BYTES)
    assert source_calls.begin("other scope", 0, SOURCE) == 0
    inner = capture.begin("inner")
    capture.recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    leaf = source_calls.begin("leaf", 0, SOURCE)
    for event_id in (leaf, inner, outer):
        capture.end(event_id)
    rows = by_name(capture.finish())
    assert (rows["leaf"].parent, rows["inner"].parent, rows["outer"].parent) == (inner, outer, 0)


def test_a_range_may_end_on_another_thread(capture: Capture, workers: list[Worker]) -> None:
    outer = workers[0].call(capture.begin, "outer")
    workers[1].call(capture.end, outer, "ValueError: far away")
    workers[0].call(lambda: capture.end(capture.begin("after")))
    rows = by_name(capture.finish())
    assert rows["outer"].flags == CROSSING | ERROR
    assert rows["outer"].error == "ValueError: far away"
    assert rows["outer"].thread.name == workers[0].thread.name
    assert rows["outer"].end_thread.number != rows["outer"].thread.number
    assert rows["outer"].end_thread.native_id == workers[1].call(threading.get_native_id)
    assert rows["after"].parent == 0
    assert rows["after"].flags == 0
    check_laws(capture.rows(), capture.opened())


def test_begin_here_end_there_goes_on_forever(capture: Capture, workers: list[Worker]) -> None:
    """More often than ranges may nest: what ended elsewhere must leave the stack of the thread
    that began it.
    """
    for _ in range(150):
        ids = workers[0].call(lambda: [capture.begin() for _ in range(20)])
        assert all(ids)
        workers[1].call(lambda ids=ids: [capture.end(event_id) for event_id in ids])
        capture.drain()
    capture.finish()
    assert len(capture.rows()) == 3000
    assert not any(row.flags & PARTIAL for row in capture.rows())
    assert capture.counters() == RecorderCounters()
