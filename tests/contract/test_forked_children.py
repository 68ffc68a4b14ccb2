"""What a fork leaves to the child: an empty recorder, with the thread that forked."""

from __future__ import annotations

import os
import threading

import pytest
from recording_helpers import SOURCE, USER, Capture, Worker, by_name, check_laws, reset, run_threads

from forked import in_child
from otel_recfn.model.events import ORDINAL_BITS
from otel_recfn.recording.types import RecorderCounters
from patience import PATIENCE_S


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_empty_and_records_its_own(capture: Capture, workers: list[Worker]) -> None:
    outer = capture.begin("parent's")
    capture.end(capture.begin("parent's too"))
    elsewhere = workers[0].call(capture.begin, "in a thread that the child doesn't have")

    def check() -> None:
        recorder = capture.recorder
        assert recorder.counters() == RecorderCounters()
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
        assert recorder.counters() == RecorderCounters()
        check_laws(list(rows.values()), list(batch.opened))

    in_child(check)
    capture.end(outer)
    workers[0].call(capture.end, elsewhere)
    capture.finish()
    assert {row.name for row in capture.rows()} == {"parent's", "parent's too", "in a thread that the child doesn't have"}
    assert capture.counters() == RecorderCounters()


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
