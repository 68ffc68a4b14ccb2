"""Ranges that end out of order or in another thread."""

from __future__ import annotations

import threading

from recording_helpers import ASYNC, CROSSING, ERROR, PARTIAL, Capture, Worker, by_name, check_laws

from otel_recfn.model.batch import Batch, Event
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import RecorderCounters
from patience import PATIENCE_S


def test_a_range_that_ends_out_of_order_crosses_others(capture: Capture) -> None:
    first = capture.begin("first")
    second = capture.begin("second")
    capture.end(first)
    third = capture.begin("third")
    capture.end(third)
    capture.end(second)
    fourth = capture.begin("fourth")
    capture.end(fourth)
    rows = by_name(capture.finish())
    assert rows["first"].flags == CROSSING
    assert rows["second"].flags == rows["third"].flags == rows["fourth"].flags == 0
    assert rows["second"].parent == first
    assert rows["third"].parent == second
    assert rows["fourth"].parent == 0
    check_laws(capture.rows(), capture.opened())


def test_who_says_that_it_is_asynchronous_crosses_nothing(capture: Capture, workers: list[Worker]) -> None:
    """``async with`` says so as it begins; where it ends makes no difference."""
    here, elsewhere = capture.begin("here", ASYNC), capture.begin("elsewhere", ASYNC)
    above = capture.begin("above")
    capture.end(here)
    workers[0].call(capture.end, elsewhere)
    capture.end(above)
    assert {row.name: row.flags for row in capture.finish()} == {"here": ASYNC, "elsewhere": ASYNC, "above": 0}


def test_out_of_order_in_the_middle_of_the_stack(capture: Capture) -> None:
    outer, middle, inner = (capture.begin(name) for name in ("outer", "middle", "inner"))
    capture.end(middle)
    capture.end(capture.begin("leaf"))
    capture.end(inner)
    capture.end(capture.begin("late"))
    capture.end(outer)
    rows = by_name(capture.finish())
    assert rows["middle"].flags == CROSSING
    assert rows["leaf"].parent == inner
    assert rows["late"].parent == outer
    assert rows["outer"].flags == rows["inner"].flags == 0


def test_a_child_that_another_thread_ended_does_not_make_its_parent_cross(capture: Capture, workers: list[Worker]) -> None:
    outer, child = workers[0].call(capture.begin, "outer"), workers[0].call(capture.begin, "child")
    workers[1].call(capture.end, child)
    workers[0].call(capture.end, outer)
    rows = by_name(capture.finish())
    assert rows["child"].flags == CROSSING
    assert rows["outer"].flags == 0
    assert rows["child"].parent == outer


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


def test_ended_elsewhere_below_a_range_that_is_open(capture: Capture, workers: list[Worker]) -> None:
    outer = workers[0].call(capture.begin, "outer")
    inner = workers[0].call(capture.begin, "inner")
    workers[1].call(capture.end, outer)
    capture.drain()
    workers[0].call(lambda: capture.end(capture.begin("leaf")))
    workers[0].call(capture.end, inner)
    workers[0].call(lambda: capture.end(capture.begin("after")))
    capture.finish()
    rows = by_name(capture.rows())
    assert (rows["inner"].parent, rows["leaf"].parent, rows["after"].parent) == (outer, inner, 0)
    assert rows["inner"].flags == rows["leaf"].flags == 0


def test_begin_here_end_there_goes_on_forever(capture: Capture, workers: list[Worker]) -> None:
    """More often than ranges may nest: what ended elsewhere must leave the stack of the thread that began it."""
    for _ in range(150):
        ids = workers[0].call(lambda: [capture.begin() for _ in range(20)])
        assert all(ids)
        workers[1].call(lambda ids=ids: [capture.end(event_id) for event_id in ids])
        capture.drain()
    capture.finish()
    assert len(capture.rows()) == 3000
    assert not any(row.flags & PARTIAL for row in capture.rows())
    assert capture.counters() == RecorderCounters()


def test_who_ended_a_range_and_then_itself_is_told_also_where_a_drain_runs_meanwhile(recorder: Recorder) -> None:
    capture = Capture(recorder)
    for _ in range(3):
        [ended] = _ended_by_a_thread_that_ends_in_a_drain(capture)
        assert ended.end_thread.number != ended.thread.number


def _ended_by_a_thread_that_ends_in_a_drain(capture: Capture) -> list[Event]:
    ender, drainer, drains = Worker(), Worker(), threading.Event()
    ender.call(capture.recorder.mark, "known to the drain")
    capture.recorder.drain()
    task = capture.begin("task", ASYNC)
    for _ in range(50_000):  # so that a drain takes a while
        capture.end(capture.begin("read"))

    def drain() -> Batch:
        drains.set()
        return capture.recorder.drain()

    drained = drainer.begin_call(drain)
    drains.wait(PATIENCE_S)
    ender.call(capture.end, task)
    ender.stop()
    batches = [drained(), capture.recorder.drain()]
    drainer.stop()
    return [event for batch in batches for event in batch.take((batch.flags & ASYNC) != 0).events()]
