"""What rows say of their thread: its logical id, its profiler run, whether it is switched off; and its stack."""

from __future__ import annotations

import sys
from typing import Any

from recording_helpers import SOURCE, USER, Capture, Worker, by_name, check_laws, events

from otel_recfn._native import LIMITS
from otel_recfn.model.events import ALL_SCOPES_MASK, Extra, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES


def test_rows_belong_to_the_profiler_run_that_their_thread_works_for(capture: Capture, workers: list[Worker]) -> None:
    recorder = capture.recorder
    outer = capture.begin("outer")
    recorder.set_profiler(4)
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


def test_what_does_not_fit_of_a_stack_is_the_outermost(recorder: Recorder) -> None:
    """Not the long lines: a stack with holes would show calls that weren't made."""
    file = "x" * 1000 + ".py"
    line = f"{file}(2): deeper"
    assert stack_below(recorder, 300, file) == [line] * (LIMITS["MAX_STACK_BYTES"] // (len(line) + 1))
