"""Threads at once, threads that end, and forks."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

import pytest
from recording_helpers import SOURCE, USER, Capture, Worker, by_name, check_laws, reset

from otel_recfn.model.events import ORDINAL_BITS
from otel_recfn.recording.protocol import Recorder, RecorderCounters
from patience import PATIENCE_S


def run_threads(functions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


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
    assert counters == RecorderCounters(recorded=len(rows), dropped=attempts.count(0), lost_ends=0)
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
    assert capture.counters().recorded == len(rows)
    assert capture.counters().dropped == begun.count(0)


def test_starts_and_stops_while_threads_record(recorder: Recorder) -> None:
    done = threading.Event()
    before = recorder.counters()
    captures = [Capture(recorder, buffer_bytes=1 << 12)]  # small, because the threads never pause

    def work() -> None:
        while not done.is_set():
            outer = recorder.begin("outer", USER, SOURCE)
            inner = recorder.begin("inner", USER, SOURCE)
            recorder.end(inner)
            recorder.end(outer)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        captures[-1].drain()
        captures[-1].finish()
        captures.append(Capture(recorder, buffer_bytes=1 << 12))
    done.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    captures[-1].finish()
    rows = [row for capture in captures for row in capture.rows()]
    check_laws(rows)
    assert recorder.counters().recorded - before.recorded == len(rows)
    names = {row.event_id: row.name for row in rows} | {0: ""}
    assert {(row.name, names[row.parent]) for row in rows} <= {("inner", "outer"), ("inner", ""), ("outer", "")}


def test_a_thread_that_ended_is_drained(capture: Capture) -> None:
    def work() -> None:
        capture.end(capture.begin("in thread"))

    run_threads([work])
    [row] = capture.drain()
    assert row.name == "in thread"
    assert capture.counters() == RecorderCounters(recorded=1, dropped=0, lost_ends=0)
    assert capture.finish() == []
    assert capture.counters().recorded == 1


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
    assert capture.counters() == RecorderCounters(recorded=2000, dropped=0, lost_ends=0)
    assert len(capture.recorder.drain().tracks) < 100


# --- fork


def in_child(check: Callable[[], None]) -> None:
    """Run ``check`` in a forked child; what it asserts fails here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        message = b""
        try:
            check()
        except BaseException:
            message = traceback.format_exc().encode()
        os.write(writing, message[:60_000])
        os._exit(0 if not message else 1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, message.decode()


@pytest.mark.one_python
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_of_threads_that_wrote_much(capture: Capture, workers: list[Worker]) -> None:
    def much() -> None:
        for index in range(8000):
            capture.end(capture.begin(f"much {index % 10}"))

    much()
    workers[0].call(much)

    def check() -> None:
        much()
        assert [row.name for row in capture.drain()] == [f"much {index % 10}" for index in range(8000)]

    in_child(check)
    much()
    capture.finish()
    assert len(capture.rows()) == 24_000
    assert capture.counters() == RecorderCounters(24_000, 0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_empty_and_records_its_own(capture: Capture, workers: list[Worker]) -> None:
    outer = capture.begin("parent's")
    capture.end(capture.begin("parent's too"))
    elsewhere = workers[0].call(capture.begin, "in a thread that the child doesn't have")

    def check() -> None:
        recorder = capture.recorder
        assert recorder.counters() == RecorderCounters(0, 0, 0)
        assert recorder.recording
        own = recorder.begin("child's", USER, SOURCE)
        recorder.end(recorder.begin("inside", USER, SOURCE))
        recorder.end(outer, "Error: the parent's")
        recorder.end(elsewhere)
        recorder.end(own)
        run_threads([lambda: recorder.end(recorder.begin("thread", USER, SOURCE))])
        batch = recorder.drain(close_open=True)
        rows = by_name(list(batch.events()))
        assert set(rows) == {"child's", "inside", "thread"}
        assert rows["child's"].parent == rows["thread"].parent == 0
        assert rows["inside"].parent == own
        assert not {own >> ORDINAL_BITS} & {outer >> ORDINAL_BITS, elsewhere >> ORDINAL_BITS}
        assert recorder.counters() == RecorderCounters(3, 0, 0)
        check_laws(list(rows.values()), list(batch.opened))

    in_child(check)
    capture.end(outer)
    workers[0].call(capture.end, elsewhere)
    capture.finish()
    assert {row.name for row in capture.rows()} == {"parent's", "parent's too", "in a thread that the child doesn't have"}
    assert capture.counters() == RecorderCounters(3, 0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_inside_record_function(capture: Capture) -> None:
    record_function = capture.recorder.record_function

    def check() -> None:
        with record_function("child's"):
            pass
        range_.__exit__(None, None, None)
        [row] = capture.recorder.drain(close_open=True).events()
        assert (row.name, row.parent) == ("child's", 0)

    range_ = record_function("parent's")
    with range_:
        in_child(check)
    [row] = capture.finish()
    assert (row.name, row.flags) == ("parent's", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forks_while_threads_record_and_drain(capture: Capture) -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            capture.end(capture.begin("parent's"))

    def drain() -> None:
        while not done.is_set():
            capture.recorder.drain()

    def check() -> None:
        capture.end(capture.recorder.begin("child's", USER, SOURCE))
        assert [row.name for row in capture.recorder.drain().events()] == ["child's"]

    threads = [threading.Thread(target=target) for target in (work, work, drain)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            in_child(check)
    finally:
        done.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    reset(capture.recorder)


def test_threads_one_after_another_lose_nothing(capture: Capture) -> None:
    def work() -> None:
        capture.end(capture.begin())

    for _ in range(700):  # more than the address space for buffers holds at once
        run_threads([work])
    assert capture.counters() == RecorderCounters(recorded=700, dropped=0, lost_ends=0)
