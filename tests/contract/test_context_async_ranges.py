"""What asynchronous ranges, and ranges of other threads, enclose."""

from __future__ import annotations

import contextvars

import pytest
from contexts import FIRST, ref
from recording_helpers import ASYNC, Capture, Reader, Worker, by_name, check_laws

FLAG = int(ASYNC)


def test_an_async_range_that_no_task_entered_encloses_nothing(
    capture: Capture,
) -> None:
    outer = capture.begin("outer")
    task = capture.begin("task", FLAG)
    inner = capture.begin("inner")
    leaf = capture.begin("leaf")
    for event_id in (leaf, inner, task):
        capture.end(event_id)
    capture.end(capture.begin("after"))
    capture.end(outer)
    rows = by_name(capture.finish())
    assert rows["task"].parent == outer
    assert (rows["inner"].parent, rows["inner"].root) == (outer, outer)
    assert (rows["leaf"].parent, rows["leaf"].root) == (inner, outer)
    assert rows["after"].parent == outer
    check_laws(capture.rows(), capture.opened())


def test_an_async_range_encloses_what_begins_while_it_is_entered(capture: Capture) -> None:
    reader = Reader(FIRST)
    capture.recorder.set_context_reader(reader)
    outer = capture.begin("outer")
    task = capture.begin("task", FLAG)
    entered = capture.recorder.enter(task)
    assert capture.recorder.is_in(entered)
    inner = capture.begin("inner")
    leaf = capture.begin("leaf")
    for event_id in (leaf, inner, task, outer):
        capture.end(event_id)
    rows = by_name(capture.finish())
    assert (rows["inner"].parent, rows["leaf"].parent) == (task, inner)
    assert {row.root for row in rows.values()} == {outer}
    assert {row.context for row in rows.values()} == {ref(FIRST)}
    assert [opened.name for opened in capture.opened()] == ["outer"]


def test_async_ranges_in_turns(capture: Capture) -> None:
    """Two tasks, each in an async range of its own, take turns on the thread."""
    tasks = {name: contextvars.copy_context() for name in ("first", "second")}
    ids = {}
    for name, task in tasks.items():
        ids[name] = task.run(capture.begin, name, FLAG)
        task.run(capture.recorder.enter, ids[name])
    for turn in range(3):
        for name, task in tasks.items():
            task.run(lambda name=name, turn=turn: capture.end(capture.begin(f"in {name} {turn}")))
    tasks["first"].run(capture.end, ids["first"])
    tasks["second"].run(lambda: capture.end(capture.begin("in second 3")))
    capture.end(capture.begin("outside"))
    tasks["second"].run(capture.end, ids["second"])
    rows = capture.finish()
    assert {row.parent for row in rows if row.name.startswith("in first")} == {ids["first"]}
    assert {row.parent for row in rows if row.name.startswith("in second")} == {ids["second"]}
    assert [row.parent for row in rows if row.name in ("first", "second", "outside")] == [0, 0, 0]


def test_what_a_task_left_it_is_not_in(capture: Capture) -> None:
    task = capture.begin("task", FLAG)
    entered = capture.recorder.enter(task)
    capture.recorder.leave(entered)
    assert not capture.recorder.is_in(entered)
    capture.end(capture.begin("after"))
    capture.end(task)
    assert capture.recorder.enter(task) is None
    assert by_name(capture.finish())["after"].parent == 0


def test_something_newer_goes_on_enclosing(capture: Capture) -> None:
    task = capture.begin("task", FLAG)
    newer = capture.begin("newer")
    assert capture.recorder.enter(task) is None
    capture.end(capture.begin("inner"))
    capture.end(newer)
    assert capture.recorder.enter(task) is not None
    capture.end(task)
    assert by_name(capture.finish())["inner"].parent == newer


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
