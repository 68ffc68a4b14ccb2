"""What rows say of their thread: its logical id, its profiler run, whether it is switched off; and its stack."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
from recording_helpers import SOURCE, USER, Capture, Worker, by_name, check_laws, events

from otel_recfn._native import LIMITS
from otel_recfn.model.batch import Event
from otel_recfn.model.events import Extra
from otel_recfn.model.scope import ALL_SCOPES_MASK, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES

TINY = 4096


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
    assert len(row.stack.encode()) < LIMITS["MAX_STACK_BYTES"]
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
    assert stack_below(recorder, 300, file) == [line] * (LIMITS["MAX_STACK_BYTES"] // (len(line) + 1))


@pytest.mark.one_python
def test_many_stacks_share_the_dictionary_with_names(recorder: Recorder) -> None:
    """More names and stacks than the dictionary of a thread holds: each row still has its own."""
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.STACK)
    rows: list[Event] = []
    for number in range(6000):
        begun: dict[str, int] = {}
        code = compile(f"begun['id'] = begin('name {number}', 7, 1)", f"file {number}.py", "exec")
        exec(code, {"begun": begun, "begin": recorder.begin})
        recorder.end(begun["id"])
        if number % 100 == 99:  # before the buffer is full
            rows += events(recorder.drain())
    recorder.stop()
    assert len(rows) == 6000
    for number, row in enumerate(rows):
        assert row.name == f"name {number}"
        assert row.stack.startswith(f"file {number}.py(1): ")


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
