"""Calls of Python code as ranges: on the thread's stack, whatever the task."""

from __future__ import annotations

import asyncio

from recording_helpers import Capture, by_name, check_laws, parents

from otel_recfn.model.events import EventFlag, EventSource


def test_a_call_is_a_range_of_its_source(capture: Capture) -> None:
    event_id = capture.recorder.begin_call("model.py(3): forward")
    capture.end(event_id)
    [row] = capture.finish()
    assert (row.event_id, row.name, row.source) == (event_id, "model.py(3): forward", EventSource.PYTHON_CALL)
    check_laws([row], capture.opened())


def test_calls_and_ranges_nest(capture: Capture) -> None:
    outer = capture.recorder.begin_call("outer")
    range_ = capture.begin("range")
    inner = capture.recorder.begin_call("inner")
    in_inner = capture.begin("in inner")
    for event_id in (in_inner, inner, range_, outer):
        capture.end(event_id)
    rows = capture.finish()
    assert parents(rows) == {"outer": "", "range": "outer", "inner": "range", "in inner": "inner"}
    check_laws(rows, capture.opened())


def test_each_row_names_the_call_around_it(capture: Capture) -> None:
    outer = capture.recorder.begin_call("outer")
    range_ = capture.begin("range")
    inner = capture.recorder.begin_call("inner")
    for event_id in (inner, range_, outer):
        capture.end(event_id)
    after = capture.begin("after")
    capture.end(after)
    callers = {row.name: row.caller for row in capture.finish()}
    assert callers == {"outer": 0, "range": outer, "inner": outer, "after": 0}


def test_a_call_is_no_range_of_the_task(capture: Capture) -> None:
    event_id = capture.recorder.begin_call("call")
    assert capture.recorder.ranges_after(None) == ()
    capture.end(event_id)
    capture.finish()


def test_a_task_runs_in_the_call_that_runs_it(capture: Capture) -> None:
    async def child() -> None:
        capture.end(capture.begin("in task"))

    async def main() -> None:
        launching = capture.recorder.begin_call("launching")
        task = asyncio.create_task(child())
        capture.end(launching)
        await task

    loop = capture.recorder.begin_call("loop")
    asyncio.run(main())
    capture.end(loop)
    assert parents(capture.finish()) == {"loop": "", "launching": "loop", "in task": "loop"}


def test_a_range_begins_in_one_call_and_ends_in_another(capture: Capture) -> None:
    outer = capture.recorder.begin_call("outer")
    entering = capture.recorder.begin_call("__enter__")
    deeper = capture.recorder.begin_call("begin the range")
    range_ = capture.begin("range")
    capture.end(deeper)
    capture.end(entering)
    capture.end(capture.recorder.begin_call("body"))
    leaving = capture.recorder.begin_call("__exit__")
    for event_id in (range_, leaving, outer):
        capture.end(event_id)
    rows = capture.finish()
    found = by_name(rows)
    assert parents(rows) == {
        "outer": "",
        "__enter__": "outer",
        "begin the range": "__enter__",
        "range": "outer",
        "body": "range",
        "__exit__": "outer",
    }
    assert found["__enter__"].end_ns == found["begin the range"].end_ns == found["range"].start_ns
    assert found["range"].end_ns == found["__exit__"].start_ns
    assert {row.flags for row in rows} == {EventFlag.NONE}
    assert found["range"].caller == found["body"].caller == outer
    check_laws(rows, capture.opened())


def test_a_range_that_outlasts_the_outermost_call_stays_in_it(capture: Capture) -> None:
    call = capture.recorder.begin_call("__enter__")
    range_ = capture.begin("range")
    capture.end(call)
    capture.end(capture.recorder.begin_call("body"))
    capture.end(range_)
    rows = capture.finish()
    assert parents(rows) == {"__enter__": "", "range": "__enter__", "body": "range"}
    assert by_name(rows)["__enter__"].flags == EventFlag.CROSSING
    check_laws(rows, capture.opened())


def test_nothing_is_recorded_without_a_recording(capture: Capture) -> None:
    capture.finish()
    assert capture.recorder.begin_call("call") == 0
