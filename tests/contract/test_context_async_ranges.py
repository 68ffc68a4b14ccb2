"""What asynchronous ranges, and ranges of other threads, enclose."""

from __future__ import annotations

import contextvars

import pytest
from contexts import FIRST, ref
from recording_helpers import ASYNC, Capture, Reader, Worker, by_name

FLAG = int(ASYNC)


def test_a_range_whose_span_is_current_is_the_parent_also_when_it_is_gone(capture: Capture) -> None:
    outer = capture.begin("outer")
    task = capture.begin("task")
    capture.end(task)
    capture.end(outer)
    capture.recorder.set_context_reader(Reader(FIRST._replace(enclosing=task, root=outer)))
    capture.recorder.context_attached(object())
    capture.end(capture.begin("late"))
    rows = by_name(capture.finish())
    assert (rows["late"].parent, rows["late"].root, rows["late"].context) == (task, outer, ref(FIRST))


@pytest.mark.parametrize("flags", [0, FLAG])
def test_a_range_of_the_thread_that_launched_the_work(capture: Capture, workers: list[Worker], flags: int) -> None:
    capture.recorder.set_context_reader(Reader(FIRST))
    outer = capture.begin("outer")
    task = capture.begin("task", flags)
    if flags:
        capture.recorder.enter(task)
    launched = contextvars.copy_context()
    capture.drain()
    workers[0].call(launched.run, lambda: capture.end(capture.begin("in task")))
    capture.drain()
    capture.end(task)
    workers[1].call(launched.run, lambda: capture.end(capture.begin("after task")))
    capture.end(outer)
    workers[1].call(launched.run, lambda: capture.end(capture.begin("after outer")))
    capture.finish()
    rows = by_name(capture.rows())
    assert (rows["in task"].parent, rows["in task"].root, rows["in task"].context) == (task, outer, ref(FIRST))
    assert rows["in task"].thread.number != rows["task"].thread.number
    assert (rows["after task"].parent, rows["after task"].root) == (outer, outer)
    assert (rows["after outer"].parent, rows["after outer"].context) == (0, ref(FIRST))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_range_that_another_thread_ended_gives_way_to_what_was_around_it(
    capture: Capture, workers: list[Worker], depth: int
) -> None:
    """And never to a range of another task, which stands below it on the thread's stack."""
    tasks = [contextvars.copy_context() for _ in range(3)]
    ids: list[int] = []

    def begin_in_it() -> None:
        capture.end(capture.begin("before"))
        for ended in reversed(ids[1:]):
            workers[1].call(capture.end, ended)
            capture.end(capture.begin(f"after {ended}"))

    def run() -> None:
        ids.append(tasks[1].run(capture.begin, "own"))
        foreign = tasks[0].run(capture.begin, "another task's")
        ids.extend(tasks[1].run(capture.begin, f"own {number}") for number in range(depth))
        newer = tasks[2].run(capture.begin, "newer, of a third task")
        tasks[1].run(begin_in_it)
        for event_id in (newer, foreign, ids[0]):
            capture.end(event_id)

    workers[0].call(run)
    rows = by_name(capture.finish())
    assert rows["before"].parent == ids[-1]
    assert [rows[f"after {ended}"].parent for ended in ids[1:]] == ids[:-1]
    assert {rows[f"after {ended}"].root for ended in ids[1:]} == {ids[0]}
