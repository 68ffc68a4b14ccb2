"""What a begin, a mark and a memory report can say of themselves, and where it stands in the
rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import source_calls
from helpers.example_counts import examples
from helpers.recording_helpers import SOURCE, USER, Capture, by_name, events
from helpers.runtime_helpers import in_thread
from otel_recfn.model.batch import COLUMN_TYPES, Event
from otel_recfn.model.events import (
    ALL_SCOPES_MASK,
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    RowKind,
)
from otel_recfn.observing import RecordFunction
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES


def test_a_begin_carries_its_columns(capture: Capture) -> None:
    event_id = source_calls.begin(
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
    source_calls.end(event_id, flags=EventFlag.STATIC_RUNTIME_OUT_VARIANT)
    [row] = capture.finish()
    assert (row.sequence_nr, row.forward_thread_id, row.handle, row.debug_handle) == (7, 3, 99, 5)
    assert (row.shapes, row.dtypes) == ("[[2,3],[]]", '["float32","Scalar"]')
    assert (row.event_id, row.scope) == (event_id, RecordScope.BACKWARD_FUNCTION)
    assert row.flags == EventFlag.STATIC_RUNTIME_OUT_VARIANT


def test_a_mark_is_a_row_of_one_moment_below_what_is_open(capture: Capture) -> None:
    outer = capture.begin("outer")
    mark = source_calls.mark("here")
    capture.end(outer)
    rows = by_name(capture.finish())
    here = rows["here"]
    assert (here.event_id, here.kind, here.parent, here.root) == (mark, RowKind.MARK, outer, outer)
    assert rows["outer"].start_ns <= here.start_ns == here.end_ns <= rows["outer"].end_ns
    assert [each.event_id for each in capture.opened()] == [outer]


def test_memory_is_reported_where_it_is_asked_for(recorder: Recorder) -> None:
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    assert source_calls.memory(10, "cpu") == 0
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.MEMORY)
    assert recorder.extras == Extra.MEMORY
    assert source_calls.memory(1 << 40, "cpu")
    assert source_calls.memory(-5, "cuda:1")
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
            open_ranges.append(source_calls.begin("range", USER, EventSource.RECORD_FUNCTION))
            expected[open_ranges[-1]] = (RowKind.RANGE, run)
        elif step == "end" and open_ranges:
            source_calls.end(open_ranges.pop())
        elif step == "mark":
            expected[source_calls.mark("mark")] = (RowKind.MARK, run)
        elif step == "memory":
            expected[source_calls.memory(8, "cpu")] = (RowKind.MEMORY, run)
        elif step == "profiler":
            run = (run + 1) % 3
            source_calls.set_profiler(run)
        elif step == "drain":
            batch = recorder.drain(open_ranges=True)
            rows += events(batch)[: batch.closed]
    source_calls.set_profiler(0)
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
    st.one_of(SAID, st.sampled_from(["end", "fail", "attributes", "generation", "drain"])),
    max_size=40,
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
            open_ranges.append(source_calls.begin("range", USER, SOURCE, **step))  # type: ignore[arg-type]
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
                "generation": {"generation": f'{{"prefill_id": {ended}}}'},
            }.get(step, {})
            expected[ended] |= said
            source_calls.end(ended, **said)
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
            "generation",
        ),
        "",
    ),
    **dict.fromkeys(("debug_handle", "step_number", "node_id", "end_node_id", "sequence_nr"), -1),
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
    opened = source_calls.begin("outer", USER, SOURCE, **said)
    texts = 3 * KEPT_BYTES // 2048  # three times as many as a thread's dictionary holds
    for number in range(texts):
        capture.end(source_calls.begin("inner", USER, SOURCE, code=f"{number}".ljust(2048, "x")))
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
"""So many bytes of texts the recorder keeps from drain to drain, before it forgets those that
nothing refers to.
"""


@pytest.fixture
def node_id() -> Iterator[int]:
    """The node id that is set as a test begins, which is set again after it.

    It isn't always -1: where PyTorch is observed, as earlier tests of the same process may have
    asked for, it keeps the last one that was set and refuses negative ones.
    """
    before = RecordFunction.get_default_node_id()
    yield before
    RecordFunction.set_default_node_id(before)


@pytest.mark.parametrize("drains", [False, True])
def test_each_row_carries_the_node_ids_of_its_begin_and_its_end(
    capture: Capture, node_id: int, drains: bool
) -> None:
    across = capture.begin("across")
    for number in (4, 5):
        RecordFunction.set_default_node_id(number)
        capture.end(capture.begin("range"))
        source_calls.mark("mark")
        if drains:
            capture.drain()
    capture.end(across)
    capture.end(capture.begin("after"))
    capture.finish()
    rows = sorted(capture.rows(), key=lambda row: row.event_id)
    found = [(row.name, row.node_id, row.end_node_id) for row in rows]
    marks = [("range", 4, 4), ("mark", 4, -1), ("range", 5, 5), ("mark", 5, -1)]
    assert found == [("across", node_id, 5), *marks, ("after", 5, 5)]


def test_the_end_in_another_thread_has_the_node_id_of_its_moment(
    capture: Capture, node_id: int
) -> None:
    opened = capture.begin("across")
    RecordFunction.set_default_node_id(4)
    in_thread(lambda: capture.end(opened))
    RecordFunction.set_default_node_id(5)
    capture.finish()
    [row] = capture.rows()
    assert (row.name, row.node_id, row.end_node_id) == ("across", node_id, 4)


@pytest.mark.usefixtures("node_id")
def test_of_very_many_node_ids_the_newest_count(capture: Capture) -> None:
    for number in range(1000):
        RecordFunction.set_default_node_id(number)
        source_calls.mark("mark")
    capture.finish()
    found = [row.node_id for row in capture.rows()]
    assert len(found) == 1000
    assert found[-100:] == list(range(900, 1000))
