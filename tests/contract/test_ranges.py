"""Begin and end: which range lies in which, and what a row says."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from recording_helpers import ASYNC, ERROR, PARTIAL, SOURCE, USER, Capture, Worker, by_name, check_laws

from otel_recfn.model.batch import COLUMN_TYPES, NO_CONTEXT
from otel_recfn.model.events import ORDINAL_BITS, ORDINAL_MASK, EventFlag, EventKind, EventSource, RecordScope, make_event_id
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import RecorderCounters
from thoroughness import one_in


def test_what_a_begin_says_is_announced(capture: Capture) -> None:
    capture.end(capture.begin("validation", flags=EventFlag.EVALUATION))
    capture.end(capture.begin("training"))
    rows = capture.finish()
    assert [row.flags for row in rows] == [opened.flags for opened in capture.opened()] == [EventFlag.EVALUATION, 0]


def test_a_row_says_what_was_recorded(capture: Capture) -> None:
    before = time.time_ns()
    event_id = capture.recorder.begin("load", int(RecordScope.USER_SCOPE), int(EventSource.MODULE), "model.layer")
    capture.end(event_id)
    after = time.time_ns()
    [row] = capture.finish()
    assert (row.event_id, row.handle) == (event_id, event_id)
    assert (row.name, row.module, row.error, row.shapes, row.dtypes) == ("load", "model.layer", "", "", "")
    assert (row.kind, row.scope, row.source) == (EventKind.RANGE, RecordScope.USER_SCOPE, EventSource.MODULE)
    assert (row.sequence_nr, row.forward_thread_id, row.node_id, row.debug_handle) == (-1, 0, -1, -1)
    assert (row.parent, row.root, row.context, row.flags) == (0, event_id, NO_CONTEXT, 0)
    assert row.thread == row.end_thread
    slack = 1_000_000_000  # between the two clocks
    assert before - slack <= row.start_ns <= row.end_ns <= after + slack


@pytest.mark.parametrize("source", range(8))
def test_there_is_room_for_eight_sources(capture: Capture, source: int) -> None:
    outer = capture.recorder.begin("outer", USER, source)
    inner = capture.recorder.begin("inner", USER, source)
    capture.end(inner)
    capture.end(outer)
    batch = capture.recorder.drain()
    assert batch.event_id.tolist() == [inner, outer]
    assert batch.source.tolist() == [source, source]
    assert batch.parent.tolist() == [outer, 0]
    assert batch.flags.tolist() == [0, 0]


def test_the_thread_of_a_row(capture: Capture) -> None:
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.thread.number == row.event_id >> ORDINAL_BITS
    assert row.thread.thread_id == row.thread_id == row.thread.number
    assert row.thread.ident == threading.get_ident()
    assert row.thread.native_id == threading.get_native_id()
    assert row.thread.name == threading.current_thread().name


def test_ids_count_the_recorded_begins_of_the_thread(capture: Capture) -> None:
    ids = []
    for _ in range(3):
        ids.append(capture.begin())
        capture.end(ids[-1])
    number, first = ids[0] >> ORDINAL_BITS, ids[0] & ORDINAL_MASK
    assert number >= 1
    assert first >= 1
    assert ids == [make_event_id(number, first + index) for index in range(3)]


def test_the_first_begin_of_a_thread_has_ordinal_one(capture: Capture, workers: list[Worker]) -> None:
    first = workers[0].call(capture.begin)
    second = workers[1].call(capture.begin)
    assert first & ORDINAL_MASK == second & ORDINAL_MASK == 1
    assert first >> ORDINAL_BITS != second >> ORDINAL_BITS


def test_columns_have_their_types(capture: Capture) -> None:
    capture.end(capture.begin())
    for batch in (capture.recorder.drain(), capture.recorder.drain()):
        for name, dtype in COLUMN_TYPES.items():
            assert getattr(batch, name).dtype == np.dtype(dtype), name
            assert len(getattr(batch, name)) == len(batch)
        assert batch.names[0] == ""
        assert batch.contexts[0] == NO_CONTEXT


def test_ranges_nest(capture: Capture) -> None:
    outer = capture.begin("outer")
    middle = capture.begin("middle")
    inner = capture.begin("inner")
    capture.end(inner)
    capture.end(middle)
    second = capture.begin("second")
    capture.end(second)
    capture.end(outer)
    rows = capture.finish()
    assert [row.name for row in rows] == ["inner", "middle", "second", "outer"]
    assert [row.parent for row in rows] == [middle, outer, outer, 0]
    assert {row.root for row in rows} == {outer}
    check_laws(rows, capture.opened())


def test_threads_have_stacks_of_their_own(capture: Capture, workers: list[Worker]) -> None:
    outer = capture.begin("outer")
    workers[0].call(lambda: capture.end(capture.begin("other")))
    capture.end(outer)
    rows = by_name(capture.finish())
    assert rows["other"].parent == 0
    assert rows["other"].thread.number != rows["outer"].thread.number


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


def test_open_ranges_wait_for_a_later_drain(capture: Capture) -> None:
    outer = capture.begin("outer")
    inner = capture.begin("inner")
    assert capture.drain() == []
    capture.end(inner)
    assert [row.name for row in capture.drain()] == ["inner"]
    capture.end(capture.begin("second"))
    assert [(row.name, row.parent) for row in capture.drain()] == [("second", outer)]
    capture.end(outer)
    assert [(row.name, row.flags) for row in capture.drain()] == [("outer", 0)]
    assert capture.finish() == []
    check_laws(capture.rows(), capture.opened())


def test_close_open_seals_what_is_open(capture: Capture) -> None:
    outer = capture.begin("outer")
    inner = capture.begin("inner")
    rows = capture.drain(close_open=True)
    assert [(row.event_id, row.flags) for row in rows] == [(inner, PARTIAL), (outer, PARTIAL)]
    assert rows[0].parent == outer
    capture.end(inner, "Error: too late")
    capture.end(outer)
    capture.end(capture.begin("after"))
    assert [(row.name, row.parent, row.flags) for row in capture.finish()] == [("after", 0, 0)]
    check_laws(capture.rows(), capture.opened())


def test_what_is_sealed_is_nobodys_parent(capture: Capture, workers: list[Worker]) -> None:
    workers[0].call(capture.begin, "outer")
    capture.drain(close_open=True)
    after = workers[0].call(capture.begin, "after")
    workers[0].call(capture.end, after)
    [row] = capture.finish()
    assert (row.parent, row.root, row.flags) == (0, after, 0)


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


def test_announcements_are_in_the_order_of_the_begins(capture: Capture) -> None:
    ids = []
    for _ in range(5):
        ids.append(capture.begin())
        capture.end(ids[-1])
    capture.finish()
    assert [opened.event_id for opened in capture.opened()] == ids


def test_what_is_recorded_is_not_counted_as_lost(capture: Capture) -> None:
    outer = capture.begin()
    capture.end(capture.begin())
    assert capture.counters() == RecorderCounters()
    assert len(capture.drain()) == 1
    capture.end(outer)
    capture.finish()
    assert len(capture.rows()) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", ""),
        ("käse 🧀 \n\t\"'\\", "käse 🧀 \n\t\"'\\"),
        ("half \ud83e surrogate", "half \\ud83e surrogate"),
        ("x" * 2048, "x" * 2048),
        ("x" * 5000, "x" * 2048),
        ("x" * 2047 + "ä", "x" * 2047),
        ("🧀" * 1000, "🧀" * 512),
    ],
    ids=["empty", "unicode", "surrogate", "longest", "too long", "cut before a character", "cut wide characters"],
)
def test_names_are_fit_for_every_encoder(capture: Capture, name: str, expected: str) -> None:
    capture.end(capture.begin(name, module=name))
    [row] = capture.finish()
    assert (row.name, row.module) == (expected, expected)
    assert [opened.name for opened in capture.opened()] == [expected]


def test_errors_are_fit_for_every_encoder(capture: Capture) -> None:
    capture.end(capture.begin("long"), "E: " + "x" * 5000)
    capture.end(capture.begin("surrogate"), "E: \ud83e")
    rows = by_name(capture.finish())
    assert rows["long"].error == "E: " + "x" * 1021
    assert rows["surrogate"].error == "E: \\ud83e"


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
    assert recorder.begin("user", USER, SOURCE) == 0
    assert recorder.begin("module", USER, int(EventSource.MODULE)) != 0
    assert recorder.begin("backward", int(RecordScope.BACKWARD_FUNCTION), SOURCE) != 0
    assert {row.name for row in capture.finish()} == {"module", "backward"}
    assert capture.counters() == RecorderCounters()


def test_flags_given_at_the_begin_stay(capture: Capture) -> None:
    capture.end(capture.begin(flags=int(ASYNC)))
    [row] = capture.finish()
    assert row.flags == ASYNC


def test_begin_takes_what_it_is_given_in_any_of_pythons_ways(capture: Capture) -> None:
    begin, end = capture.recorder.begin, capture.recorder.end
    outer = begin(name="outer", scope=7, source=1, flags=0, debug_handle=-5, handle=2**64 - 1, sequence_nr=3)
    inner = begin("inner", 7, 1, "path", 0, shapes="[[2]]", dtypes='["float"]', forward_thread_id=9)
    end(inner, flags=int(EventFlag.NCCL_META))
    end(event_id=outer, error="ValueError: no")
    rows = {row.name: row for row in capture.finish()}
    assert (rows["outer"].debug_handle, rows["outer"].handle, rows["outer"].sequence_nr) == (-5, 2**64 - 1, 3)
    assert (rows["outer"].error, rows["outer"].parent) == ("ValueError: no", 0)
    assert (rows["inner"].module, rows["inner"].shapes, rows["inner"].dtypes) == ("path", "[[2]]", '["float"]')
    assert (rows["inner"].forward_thread_id, rows["inner"].parent) == (9, outer)
    assert rows["inner"].flags & EventFlag.NCCL_META


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((), {}),
        (("a", 7), {}),
        (("a", 7, 1, "", 0, -1), {}),
        (("a", 7, 1), {"colour": 1}),
        (("a", 7, 1), {"name": "b"}),
        ((), {"name": "a", "source": 1}),
    ],
)
def test_begin_refuses_arguments_that_are_not_its_own(
    capture: Capture, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        capture.recorder.begin(*positional, **named)
    with pytest.raises(TypeError):
        capture.recorder.end(colour=1)  # type: ignore[call-arg]
    assert capture.finish() == []
