"""Threads at once, and threads that end."""

from __future__ import annotations

import threading

import pytest
from recording_helpers import Capture, check_laws, run_threads

from otel_recfn.model.events import ORDINAL_BITS
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import RecorderCounters
from patience import PATIENCE_S


def nest(capture: Capture, rounds: int, begun: list[int]) -> None:
    """Many small trees."""
    for _ in range(rounds):
        ids = [capture.begin(name) for name in ("outer", "middle", "inner")]
        capture.end(ids[2])
        ids.append(capture.begin("second"))
        capture.end(ids[3])
        capture.end(ids[1])
        capture.end(ids[0])
        begun.extend(ids)


@pytest.mark.parametrize("buffer_bytes", [8 << 20, 8192], ids=["all fits", "much is dropped"])
def test_eight_threads_hammer_while_another_drains(recorder: Recorder, buffer_bytes: int) -> None:
    capture, done = Capture(recorder, buffer_bytes), threading.Event()
    begun: list[list[int]] = [[] for _ in range(8)]

    def drain() -> None:
        while not done.is_set():
            capture.drain()

    drainer = threading.Thread(target=drain)
    drainer.start()
    run_threads([lambda ids=ids: nest(capture, 300, ids) for ids in begun])
    done.set()
    drainer.join(PATIENCE_S)
    capture.finish()
    rows, attempts = capture.rows(), [event_id for ids in begun for event_id in ids]
    assert {row.event_id for row in rows} == {event_id for event_id in attempts if event_id}
    assert not any(row.flags for row in rows)
    check_laws(rows, capture.opened())
    counters = capture.counters()
    assert counters == RecorderCounters(dropped=attempts.count(0))
    if 0 not in attempts:
        names = {row.event_id: row.name for row in rows} | {0: ""}
        expected = {"outer": "", "middle": "outer", "inner": "middle", "second": "middle"}
        assert all(names[row.parent] == expected[row.name] for row in rows)


def test_ranges_travel_between_threads_while_another_drains(recorder: Recorder) -> None:
    """Each thread begins ranges and hands them to the next one, which ends them."""
    capture, done, count = Capture(recorder), threading.Event(), 4
    mailboxes: list[list[int]] = [[] for _ in range(count)]
    begun: list[int] = []

    def work(own: list[int], following: list[int]) -> None:
        for _ in range(300):
            ids = [capture.begin("travels"), capture.begin("stays")]
            begun.extend(ids)
            following.append(ids[0])
            capture.end(ids[1])
            while own:
                capture.end(own.pop())

    def drain() -> None:
        while not done.is_set():
            capture.drain()

    drainer = threading.Thread(target=drain)
    drainer.start()
    run_threads([lambda at=at: work(mailboxes[at], mailboxes[(at + 1) % count]) for at in range(count)])
    done.set()
    drainer.join(PATIENCE_S)
    capture.finish()
    rows = capture.rows()
    assert {row.event_id for row in rows} == {event_id for event_id in begun if event_id}
    check_laws(rows, capture.opened())
    assert capture.counters().dropped == begun.count(0)


def test_a_thread_that_ended_is_drained(capture: Capture) -> None:
    def work() -> None:
        capture.end(capture.begin("in thread"))

    run_threads([work])
    [row] = capture.drain()
    assert row.name == "in thread"
    assert capture.counters() == RecorderCounters()
    assert capture.finish() == []
    assert len(capture.rows()) == 1


def test_threads_keep_their_names_after_their_end(capture: Capture) -> None:
    thread = threading.Thread(target=lambda: capture.end(capture.begin()), name="loader 7")
    thread.start()
    thread.join(PATIENCE_S)
    [row] = capture.finish()
    assert row.thread.name == "loader 7"


def test_a_range_outlives_its_thread(capture: Capture) -> None:
    begun: list[int] = []
    run_threads([lambda: begun.append(capture.begin("orphan"))])
    assert capture.drain() == []
    assert capture.drain() == []
    capture.end(begun[0])
    [row] = capture.finish()
    assert (row.event_id, row.flags & 16) == (begun[0], 0)


def test_thread_numbers_are_never_used_again(capture: Capture) -> None:
    numbers = []
    for _ in range(20):
        run_threads([lambda: numbers.append(capture.begin() >> ORDINAL_BITS)])
        capture.drain(close_open=True)
    assert len(set(numbers)) == 20
    assert numbers == sorted(numbers)


def test_threads_that_ended_are_freed(capture: Capture) -> None:
    """Thousands of short threads: the counters stay whole though their states are gone."""
    for index in range(2000):
        run_threads([lambda: capture.end(capture.begin())])
        if index % 50 == 0:
            capture.drain()
    capture.finish()
    assert len(capture.rows()) == 2000
    assert capture.counters() == RecorderCounters()
    assert len(capture.recorder.drain().tracks) < 100
