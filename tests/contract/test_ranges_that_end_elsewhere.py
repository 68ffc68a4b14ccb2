"""Ranges that end out of order or in another thread."""

from __future__ import annotations

import threading

from recording_helpers import ASYNC, CROSSING, ERROR, PARTIAL, Capture, Worker, by_name, check_laws

from otel_recfn.recording.types import RecorderCounters


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
