"""What a fork leaves to the child: an empty recorder, with the thread that forked, and no thread
of ours before it records.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import otel_recfn
from helpers import source_calls
from helpers.forked_work import in_child
from helpers.recording_helpers import (
    SOURCE,
    USER,
    Capture,
    Worker,
    by_name,
    check_laws,
    reset,
    run_threads,
)
from helpers.running_capture import Running
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import ORDINAL_BITS, EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import RecorderCounters
from otel_recfn.session.session import Session


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_empty_and_records_its_own(
    capture: Capture, workers: list[Worker]
) -> None:
    outer = capture.begin("parent's")
    capture.end(capture.begin("parent's too"))
    elsewhere = workers[0].call(capture.begin, "in a thread that the child doesn't have")

    def check() -> None:
        recorder = capture.recorder
        assert recorder.counters() == RecorderCounters()
        assert source_calls.recording()
        own = source_calls.begin("child's", USER, SOURCE)
        source_calls.end(source_calls.begin("inside", USER, SOURCE))
        source_calls.end(outer, "Error: the parent's")
        source_calls.end(elsewhere)
        source_calls.end(own)
        run_threads([lambda: source_calls.end(source_calls.begin("thread", USER, SOURCE))])
        batch = recorder.drain(close_open=True)
        rows = by_name(list(batch.events()))
        assert set(rows) == {"child's", "inside", "thread"}
        assert rows["child's"].parent == rows["thread"].parent == 0
        assert rows["inside"].parent == own
        assert not {own >> ORDINAL_BITS} & {outer >> ORDINAL_BITS, elsewhere >> ORDINAL_BITS}
        assert recorder.counters() == RecorderCounters()
        check_laws(list(rows.values()), list(batch.opened))

    in_child(check)
    capture.end(outer)
    workers[0].call(capture.end, elsewhere)
    capture.finish()
    assert {row.name for row in capture.rows()} == {
        "parent's",
        "parent's too",
        "in a thread that the child doesn't have",
    }
    assert capture.counters() == RecorderCounters()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_inside_record_function(capture: Capture) -> None:
    record_function = otel_recfn.record_function

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
        capture.end(source_calls.begin("child's", USER, SOURCE))
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


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder, [])
    yield session
    session.at_exit()


def record(recorder: Recorder) -> None:
    source_calls.end(
        source_calls.begin("range", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)
    )


def drains() -> bool:
    return any(thread.name == "otel-recfn drain" for thread in threading.enumerate())


@pytest.mark.one_python
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_one_that_records_nothing_has_none(recorder: Recorder, session: Session) -> None:
    running = Running(session, Selected())
    record(recorder)
    assert drains()

    def check() -> None:
        # A fork has one thread. Whatever starts another one runs in it: our handler of forks, which
        # is done, or a use of ours.
        assert threading.active_count() == 1
        assert session.flush(running.capture, PATIENCE_S)
        assert threading.active_count() == 1
        running.stop()
        assert running.capture.rows == 0

    in_child(check)
    running.stop()


@pytest.mark.one_python
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_one_records_is_drained(
    recorder: Recorder, session: Session, generations: int, elsewhere: bool
) -> None:
    """And nothing of its parent's. Also in a thread of its own, and in a child of its own."""
    running = Running(session, Selected())
    record(recorder)

    def check(left: int) -> None:
        if left > 1:
            in_child(lambda: check(left - 1))
        if elsewhere:
            thread = threading.Thread(target=record, args=(recorder,))
            thread.start()
            thread.join()
        else:
            record(recorder)
        wait_until(lambda: running.capture.rows == 1)
        assert drains()
        running.stop()
        assert not drains()

    in_child(lambda: check(generations))
    assert running.stop().names() == ["range"]
