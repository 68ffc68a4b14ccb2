"""What a begin, a mark and a memory report can say of themselves, and where it stands in the rows."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_helpers import PARTIAL, SOURCE, USER, Capture, Worker, by_name, check_laws

from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import EventFlag, EventKind, EventSource, Extra
from otel_recfn.model.scope import ALL_SCOPES_MASK, RecordScope
from otel_recfn.recording.limits import MAX_STACK_BYTES
from otel_recfn.recording.protocol import DEFAULT_BUFFER_BYTES, Recorder

TINY = 4096


def events(batch: Batch) -> list[Event]:
    return list(batch.events())


def test_a_begin_carries_its_columns(capture: Capture) -> None:
    recorder = capture.recorder
    event_id = recorder.begin(
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
    recorder.end(event_id, flags=EventFlag.STATIC_RUNTIME_OUT_VARIANT)
    [row] = capture.finish()
    assert (row.sequence_nr, row.forward_thread_id, row.handle, row.debug_handle) == (7, 3, 99, 5)
    assert (row.shapes, row.dtypes) == ("[[2,3],[]]", '["float32","Scalar"]')
    assert (row.event_id, row.scope) == (event_id, RecordScope.BACKWARD_FUNCTION)
    assert row.flags == EventFlag.STATIC_RUNTIME_OUT_VARIANT


def test_what_a_begin_does_not_say_is_absent(capture: Capture) -> None:
    event_id = capture.begin()
    capture.end(event_id)
    [row] = capture.finish()
    assert (row.sequence_nr, row.forward_thread_id, row.handle, row.debug_handle) == (-1, 0, event_id, -1)
    assert (row.shapes, row.dtypes, row.profiler, row.flops, row.stack, row.nbytes, row.device) == ("", "", 0, 0, "", 0, "")


def test_shapes_that_are_too_long_are_left_out_whole(capture: Capture) -> None:
    capture.end(capture.recorder.begin("wide", USER, SOURCE, shapes="[" * 20_000, dtypes="[]"))
    [row] = capture.finish()
    assert (row.shapes, row.dtypes) == ("", "")


def test_a_mark_is_a_row_of_one_moment_below_what_is_open(capture: Capture) -> None:
    outer = capture.begin("outer")
    mark = capture.recorder.mark("here")
    capture.end(outer)
    rows = by_name(capture.finish())
    here = rows["here"]
    assert (here.event_id, here.kind, here.parent, here.root) == (mark, EventKind.MARK, outer, outer)
    assert rows["outer"].start_ns <= here.start_ns == here.end_ns <= rows["outer"].end_ns
    assert [each.event_id for each in capture.opened()] == [outer]


def test_a_mark_that_stands_alone_announces_nothing(capture: Capture) -> None:
    assert capture.recorder.mark("alone")
    [row] = capture.finish()
    assert (row.parent, row.root) == (0, row.event_id)
    assert capture.opened() == []


def test_memory_is_reported_where_it_is_asked_for(recorder: Recorder) -> None:
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    assert recorder.memory(10, "cpu") == 0
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.MEMORY)
    assert recorder.extras == Extra.MEMORY
    assert recorder.memory(1 << 40, "cpu")
    assert recorder.memory(-5, "cuda:1")
    recorder.stop()
    rows = events(recorder.drain(close_open=True))
    assert [(row.name, row.kind, row.nbytes, row.device) for row in rows] == [
        ("[memory]", EventKind.MEMORY, 1 << 40, "cpu"),
        ("[memory]", EventKind.MEMORY, -5, "cuda:1"),
    ]


def test_marks_and_memory_are_not_recorded_after_stop(capture: Capture) -> None:
    capture.recorder.stop()
    assert capture.recorder.mark("late") == 0
    assert capture.recorder.memory(1, "cpu") == 0


def test_marks_count_against_the_buffer(recorder: Recorder, workers: list[Worker]) -> None:
    capture = Capture(recorder, buffer_bytes=TINY)
    before = recorder.counters()
    made = workers[0].call(lambda: [recorder.mark("m") for _ in range(2000)])
    dropped = made.count(0)
    assert dropped > 0
    assert len(capture.finish()) == 2000 - dropped
    assert recorder.counters().dropped - before.dropped == dropped


def test_a_mark_is_recorded_however_many_ranges_are_open(capture: Capture) -> None:
    ids = []
    while (event_id := capture.begin()) != 0:
        ids.append(event_id)
    mark = capture.recorder.mark("deep")
    for event_id in reversed(ids):
        capture.end(event_id)
    assert by_name([row for row in capture.finish() if row.kind == EventKind.MARK])["deep"].event_id == mark != 0


def test_the_end_of_an_open_range_has_room_whatever_marks_fill(recorder: Recorder, workers: list[Worker]) -> None:
    capture = Capture(recorder, buffer_bytes=TINY)
    outer = workers[0].call(capture.begin, "outer")
    workers[0].call(lambda: [recorder.mark("m") for _ in range(2000)])
    workers[0].call(capture.end, outer)
    assert by_name([row for row in capture.finish() if row.kind == EventKind.RANGE])["outer"].flags == 0


def test_rows_belong_to_the_profiler_run_that_their_thread_works_for(capture: Capture, workers: list[Worker]) -> None:
    recorder = capture.recorder
    outer = capture.begin("outer")
    recorder.set_profiler(4)
    assert recorder.profiler() == 4
    capture.end(capture.begin("inside"))
    recorder.mark("mark")
    elsewhere = workers[0].call(capture.begin, "elsewhere")
    workers[0].call(capture.end, elsewhere)
    recorder.set_profiler(9)
    recorder.set_profiler(0)
    capture.end(outer)
    capture.end(capture.begin("after"))
    rows = by_name(capture.finish())
    assert {name: row.profiler for name, row in rows.items()} == {
        "outer": 0,
        "inside": 4,
        "mark": 4,
        "elsewhere": 0,
        "after": 0,
    }


def test_a_profiler_run_holds_across_drains_and_captures(capture: Capture) -> None:
    capture.recorder.set_profiler(6)
    capture.end(capture.begin("one"))
    capture.drain()
    capture.end(capture.begin("two"))
    capture.finish()
    second = Capture(capture.recorder)
    second.end(second.begin("three"))
    capture.recorder.set_profiler(0)
    second.end(second.begin("four"))
    found = {row.name: row.profiler for row in [*capture.rows(), *second.finish()]}
    assert found == {"one": 6, "two": 6, "three": 6, "four": 0}


def test_a_thread_that_is_switched_off_records_nothing_new(capture: Capture, workers: list[Worker]) -> None:
    recorder = capture.recorder
    open_range = capture.begin("open")
    assert recorder.set_thread_enabled(False)
    assert capture.begin("unseen") == 0
    assert recorder.mark("unseen") == 0
    capture.end(open_range)
    elsewhere = workers[0].call(capture.begin, "elsewhere")
    workers[0].call(capture.end, elsewhere)
    assert not recorder.set_thread_enabled(True)
    capture.end(capture.begin("seen"))
    rows = by_name(capture.finish())
    assert set(rows) == {"open", "elsewhere", "seen"}
    assert rows["open"].flags == 0
    check_laws(capture.rows(), capture.opened())


def test_a_thread_that_is_switched_off_stays_so_in_the_next_capture(capture: Capture) -> None:
    recorder = capture.recorder
    capture.begin("old")
    recorder.set_thread_enabled(False)
    try:
        capture.finish()
        second = Capture(recorder)
        assert second.begin("unseen") == 0
    finally:
        recorder.set_thread_enabled(True)
    new = second.begin("new")
    second.end(new)
    [row] = second.finish()
    assert (row.event_id, row.parent, row.root) == (new, 0, new)


def test_a_thread_has_one_logical_id(capture: Capture, workers: list[Worker]) -> None:
    recorder = capture.recorder
    ids = [recorder.current_thread_id(), *(worker.call(recorder.current_thread_id) for worker in workers)]
    assert len(set(ids)) == len(ids)
    assert recorder.current_thread_id() == ids[0]
    capture.end(capture.begin())
    [row] = capture.finish()
    assert row.thread_id == ids[0]


def test_a_thread_that_asked_for_its_id_gets_its_buffer_when_it_records(recorder: Recorder, workers: list[Worker]) -> None:
    thread_id = workers[0].call(recorder.current_thread_id)
    capture = Capture(recorder, buffer_bytes=TINY)
    assert 0 in workers[0].call(lambda: [recorder.mark("m") for _ in range(2000)])
    assert {row.thread_id for row in capture.finish()} == {thread_id}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_childs_thread_has_an_id_of_its_own(recorder: Recorder, workers: list[Worker]) -> None:
    if "torch" in sys.modules:
        pytest.skip("where PyTorch is observed the ids are PyTorch's, which a forked child keeps")

    def ids_of_parent_and_child() -> tuple[int, int]:
        parents = recorder.current_thread_id()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(recorder.current_thread_id()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as pipe:
            return parents, int(pipe.read())

    parents, childs = workers[0].call(ids_of_parent_and_child)
    assert 0 < parents != childs > 0


def test_logical_ids_are_not_reused(recorder: Recorder) -> None:
    seen: list[int] = []
    for _ in range(5):
        thread = threading.Thread(target=lambda: seen.append(recorder.current_thread_id()))
        thread.start()
        thread.join()
        recorder.drain()
    assert len(set(seen)) == 5


def test_copies_of_open_ranges_follow_what_closed(capture: Capture, workers: list[Worker]) -> None:
    outer, inner = capture.begin("outer"), capture.begin("inner")
    capture.end(capture.begin("closed"))
    other = workers[0].call(capture.begin, "other")
    batch = capture.recorder.drain(open_ranges=True)
    rows = events(batch)
    assert [row.name for row in rows[: batch.closed]] == ["closed"]
    copies = rows[batch.closed :]
    assert sorted(row.event_id for row in copies) == sorted([outer, inner, other])
    assert all(row.flags == PARTIAL and row.end_ns >= row.start_ns for row in copies)
    assert [row.name for row in copies if row.thread == rows[0].thread] == ["inner", "outer"]
    workers[0].call(capture.end, other)
    capture.end(inner)
    capture.end(outer)
    whole = by_name(capture.finish())
    assert {name: row.flags for name, row in whole.items()} == {"outer": 0, "inner": 0, "other": 0}


def test_stacks_are_recorded_where_they_are_asked_for(recorder: Recorder) -> None:
    record_function = recorder.record_function

    def innermost() -> int:
        with record_function("with stack"):
            return sys._getframe().f_lineno - 1

    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.STACK)
    line = innermost()
    recorder.end(recorder.begin("begun", USER, SOURCE))
    recorder.end(recorder.begin("backward", RecordScope.BACKWARD_FUNCTION, SOURCE))
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    innermost()
    recorder.stop()
    with_stack, begun, backward, without = events(recorder.drain(close_open=True))
    assert with_stack.stack.splitlines()[0] == f"{__file__}({line}): innermost"
    assert with_stack.stack.splitlines()[1].endswith("test_stacks_are_recorded_where_they_are_asked_for")
    assert begun.stack.splitlines()[0].endswith("test_stacks_are_recorded_where_they_are_asked_for")
    assert (backward.stack, without.stack) == ("", "")


def stack_below(recorder: Recorder, levels: int, file: str) -> list[str]:
    """The stack of a range that so many frames of that file enclose, of which each calls the next."""
    begun: list[int] = []
    program = "def deeper(levels):\n    deeper(levels - 1) if levels > 1 else begun.append(begin('deep', 7, 1))\n"
    namespace: dict[str, Any] = {"begin": recorder.begin, "begun": begun}
    exec(compile(program, file, "exec"), namespace)
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.STACK)
    namespace["deeper"](levels)
    recorder.end(begun[0])
    recorder.stop()
    [row] = events(recorder.drain(close_open=True))
    assert len(row.stack.encode()) < MAX_STACK_BYTES
    return row.stack.splitlines()


def test_a_stack_of_a_hundred_frames_is_whole(recorder: Recorder) -> None:
    file = "/somewhere/with/a/long/path/site-packages/framework/trainer.py"
    lines = stack_below(recorder, 100, file)
    assert lines[:100] == [f"{file}(2): deeper"] * 100
    assert lines[100].startswith(f"{__file__}(")
    assert lines[100].endswith("): stack_below")


def test_what_does_not_fit_of_a_stack_is_the_outermost(recorder: Recorder) -> None:
    """Not the long lines: a stack with holes would show calls that weren't made."""
    file = "x" * 1000 + ".py"
    line = f"{file}(2): deeper"
    assert stack_below(recorder, 300, file) == [line] * (MAX_STACK_BYTES // (len(line) + 1))


def test_many_stacks_share_the_dictionary_with_names(recorder: Recorder) -> None:
    """More names and stacks than the dictionary of a thread holds: each row still has its own."""
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.STACK)
    rows: list[Event] = []
    for number in range(6000):
        begun: dict[str, int] = {}
        code = compile(f"begun['id'] = begin('name {number}', 7, 1)", f"file {number}.py", "exec")
        exec(code, {"begun": begun, "begin": recorder.begin})
        recorder.end(begun["id"])
        if number % 100 == 99:  # names are shortened where a buffer fills
            rows += events(recorder.drain())
    recorder.stop()
    assert len(rows) == 6000
    for number, row in enumerate(rows):
        assert row.name == f"name {number}"
        assert row.stack.startswith(f"file {number}.py(1): ")


STEPS = st.lists(st.sampled_from(["begin", "end", "mark", "memory", "profiler", "drain"]), max_size=80)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_record_comes_out_once_with_the_run_it_belongs_to(recorder: Recorder, steps: list[str]) -> None:
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.MEMORY)
    run, expected, open_ranges, rows = 0, {}, [], []
    for step in [*steps, *["end"] * len(steps)]:
        if step == "begin":
            open_ranges.append(recorder.begin("range", USER, EventSource.RECORD_FUNCTION))
            expected[open_ranges[-1]] = (EventKind.RANGE, run)
        elif step == "end" and open_ranges:
            recorder.end(open_ranges.pop())
        elif step == "mark":
            expected[recorder.mark("mark")] = (EventKind.MARK, run)
        elif step == "memory":
            expected[recorder.memory(8, "cpu")] = (EventKind.MEMORY, run)
        elif step == "profiler":
            run = (run + 1) % 3
            recorder.set_profiler(run)
        elif step == "drain":
            batch = recorder.drain(open_ranges=True)
            rows += events(batch)[: batch.closed]
    recorder.set_profiler(0)
    recorder.stop()
    rows += events(recorder.drain(close_open=True))
    assert {row.event_id: (row.kind, row.profiler) for row in rows} == expected
    assert len(rows) == len(expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_on_with_its_threads_profiler_run(capture: Capture) -> None:
    recorder = capture.recorder
    recorder.set_profiler(5)
    capture.end(capture.begin("parent"))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        recorder.end(recorder.begin("child", USER, SOURCE))
        found = [(row.name, row.profiler) for row in recorder.drain().events()]
        os.write(write, repr(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    recorder.set_profiler(0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "[('child', 5)]"


def test_rows_carry_the_node_id_of_the_process(capture: Capture) -> None:
    recorder = capture.recorder
    recorder.set_default_node_id(3)
    try:
        assert recorder.default_node_id() == 3
        capture.end(capture.begin())
        assert [row.node_id for row in capture.finish()] == [3]
    finally:
        recorder.set_default_node_id(-1)
    second = Capture(recorder)
    second.end(second.begin())
    assert [row.node_id for row in second.finish()] == [-1]
