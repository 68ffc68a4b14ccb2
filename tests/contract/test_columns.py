"""What a begin, a mark and a memory report can say of themselves, and where it stands in the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_helpers import SOURCE, USER, Capture, by_name, events

from example_counts import examples
from otel_recfn import _native
from otel_recfn.model.batch import COLUMN_TYPES, Event
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    RowKind,
)
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES


def test_a_begin_carries_its_columns(capture: Capture) -> None:
    event_id = _native.begin(
        "mm",
        RecordScope.BACKWARD_FUNCTION,
        SOURCE,
        sequence_nr=7,
        forward_thread_id=3,
        handle=99,
        debug_handle=5,
        shapes="[[2,3],[]]",
        dtypes='["float32","Scalar"]',
    )
    _native.end(event_id, flags=EventFlag.STATIC_RUNTIME_OUT_VARIANT)
    [row] = capture.finish()
    assert (row.sequence_nr, row.forward_thread_id, row.handle, row.debug_handle) == (7, 3, 99, 5)
    assert (row.shapes, row.dtypes) == ("[[2,3],[]]", '["float32","Scalar"]')
    assert (row.event_id, row.scope) == (event_id, RecordScope.BACKWARD_FUNCTION)
    assert row.flags == EventFlag.STATIC_RUNTIME_OUT_VARIANT


def test_a_mark_is_a_row_of_one_moment_below_what_is_open(capture: Capture) -> None:
    outer = capture.begin("outer")
    mark = _native.mark("here")
    capture.end(outer)
    rows = by_name(capture.finish())
    here = rows["here"]
    assert (here.event_id, here.kind, here.parent, here.root) == (mark, RowKind.MARK, outer, outer)
    assert rows["outer"].start_ns <= here.start_ns == here.end_ns <= rows["outer"].end_ns
    assert [each.event_id for each in capture.opened()] == [outer]


def test_memory_is_reported_where_it_is_asked_for(recorder: Recorder) -> None:
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    assert _native.memory(10, "cpu") == 0
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.MEMORY)
    assert recorder.extras == Extra.MEMORY
    assert _native.memory(1 << 40, "cpu")
    assert _native.memory(-5, "cuda:1")
    recorder.stop()
    rows = events(recorder.drain(close_open=True))
    assert [(row.name, row.kind, row.nbytes, row.device) for row in rows] == [
        ("[memory]", RowKind.MEMORY, 1 << 40, "cpu"),
        ("[memory]", RowKind.MEMORY, -5, "cuda:1"),
    ]


STEPS = st.lists(
    st.sampled_from(["begin", "end", "mark", "memory", "profiler", "drain"]), max_size=80
)


@examples(60)
@given(steps=STEPS)
def test_every_record_comes_out_once_with_the_run_it_belongs_to(
    recorder: Recorder, steps: list[str]
) -> None:
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.MEMORY)
    run, expected, open_ranges, rows = 0, {}, [], []
    for step in [*steps, *["end"] * len(steps)]:
        if step == "begin":
            open_ranges.append(_native.begin("range", USER, EventSource.RECORD_FUNCTION))
            expected[open_ranges[-1]] = (RowKind.RANGE, run)
        elif step == "end" and open_ranges:
            _native.end(open_ranges.pop())
        elif step == "mark":
            expected[_native.mark("mark")] = (RowKind.MARK, run)
        elif step == "memory":
            expected[_native.memory(8, "cpu")] = (RowKind.MEMORY, run)
        elif step == "profiler":
            run = (run + 1) % 3
            _native.set_profiler(run)
        elif step == "drain":
            batch = recorder.drain(open_ranges=True)
            rows += events(batch)[: batch.closed]
    _native.set_profiler(0)
    recorder.stop()
    rows += events(recorder.drain(close_open=True))
    assert {row.event_id: (row.kind, row.profiler) for row in rows} == expected
    assert len(rows) == len(expected)


SAID = st.fixed_dictionaries(
    {},
    optional={
        "module": st.just("encoder.0"),
        "shapes": st.just("[[2]]"),
        "dtypes": st.just('["float32"]'),
        "debug_handle": st.integers(0, 5),
        "step_number": st.integers(0, 5),
        "code": st.just("train.py(3): step"),
    },
)
"""What few begins say of themselves."""
TOLD = st.lists(
    st.one_of(SAID, st.sampled_from(["end", "fail", "attributes", "drain"])), max_size=40
)


@examples(100)
@given(steps=TOLD)
def test_each_row_says_what_its_own_begin_and_end_did(
    recorder: Recorder, steps: list[dict[str, object] | str]
) -> None:
    capture = Capture(recorder)
    open_ranges: list[int] = []
    expected: dict[int, dict[str, object]] = {}
    rows: list[Event] = []
    for step in [*steps, *["end"] * len(steps)]:
        if isinstance(step, dict):
            open_ranges.append(_native.begin("range", USER, SOURCE, **step))  # type: ignore[arg-type]
            expected[open_ranges[-1]] = {**NOTHING_SAID, **step}
        elif step == "drain":
            batch = recorder.drain(open_ranges=True)
            for row in events(batch)[batch.closed :]:
                assert {name: getattr(row, name) for name in NOTHING_SAID} == expected[row.event_id]
            rows += events(batch)[: batch.closed]
        elif open_ranges:
            ended = open_ranges.pop()
            said = {
                "fail": {"error": "ValueError: no"},
                "attributes": {"attributes": f'{{"id": "0/{ended % 3}"}}'},
            }.get(step, {})
            expected[ended] |= said
            _native.end(ended, **said)
    rows += capture.finish()
    assert {
        row.event_id: {name: getattr(row, name) for name in NOTHING_SAID} for row in rows
    } == expected


NOTHING_SAID: dict[str, object] = {
    **dict.fromkeys(
        (
            "module",
            "shapes",
            "dtypes",
            "code",
            "error",
            "stack",
            "stacktrace",
            "device",
            "attributes",
        ),
        "",
    ),
    **dict.fromkeys(("debug_handle", "step_number", "node_id", "sequence_nr"), -1),
    **dict.fromkeys(("caller", "flops", "nbytes", "profiler"), 0),
}


def test_nobody_writes_into_what_batches_share(recorder: Recorder) -> None:
    capture = Capture(recorder)
    for _ in range(2):
        capture.end(capture.begin())
        capture.drain()
    one, other = capture.batches
    shared = [
        name for name in COLUMN_TYPES if np.shares_memory(getattr(one, name), getattr(other, name))
    ]
    for name in shared:
        with pytest.raises(ValueError, match="read-only"):
            getattr(one, name)[0] = 7
        with pytest.raises(ValueError, match="WRITEABLE"):
            getattr(one, name).flags.writeable = True
    capture.finish()


def test_an_open_range_keeps_its_texts_while_others_come_and_go(recorder: Recorder) -> None:
    said = {"module": "encoder.0", "shapes": "[[2]]", "code": "train.py(3): step"}
    capture = Capture(recorder)
    known = len(recorder.drain().names)  # of tests before this one
    opened = _native.begin("outer", USER, SOURCE, **said)
    texts = 3 * KEPT_BYTES // 2048  # three times as many as a thread's dictionary holds
    for number in range(texts):
        capture.end(_native.begin("inner", USER, SOURCE, code=f"{number}".ljust(2048, "x")))
        if number % 100 == 0:
            capture.drain()
    for batch in (recorder.drain(open_ranges=True), recorder.drain(open_ranges=True)):
        assert {name: getattr(events(batch)[-1], name) for name in said} == said
    assert len(batch.names) < known + texts, "they were all kept"
    capture.end(opened, "ValueError: no")
    row = capture.finish()[-1]
    assert {name: getattr(row, name) for name in (*said, "error")} == {
        **said,
        "error": "ValueError: no",
    }


KEPT_BYTES = 8 << 20
"""So many bytes of texts the recorder keeps from drain to drain, before it forgets those that nothing refers to."""


def test_each_row_carries_the_node_id_that_its_drain_finds(capture: Capture) -> None:
    recorder = capture.recorder
    try:
        for node_id in (4, 5):
            _native.set_default_node_id(node_id)
            capture.end(capture.begin())
            _native.mark("mark")
            assert {event.node_id for event in recorder.drain().events()} == {node_id}
    finally:
        _native.set_default_node_id(-1)
