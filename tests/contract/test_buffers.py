"""What doesn't fit: dropped, counted, and never at the price of nesting."""

from __future__ import annotations

import pytest
from recording_helpers import ASYNC, PARTIAL, SOURCE, USER, Capture, Worker, check_laws, workers_of

from otel_recfn.recording.protocol import Recorder

TINY = 4096  # the smallest buffer that both recorders know; 10,000 ranges overfill it in both
MAX_DEPTH = 1024


@pytest.fixture
def tiny(recorder: Recorder) -> Capture:
    return Capture(recorder, buffer_bytes=TINY)


def fill(capture: Capture, count: int = 10_000) -> list[int]:
    ids = []
    for index in range(count):
        ids.append(capture.begin(f"{index % 3}"))
        capture.end(ids[-1])
    return ids


def test_a_full_buffer_drops_and_counts(tiny: Capture, workers: list[Worker]) -> None:
    ids = workers[0].call(fill, tiny)
    tiny.finish()
    recorded = [event_id for event_id in ids if event_id]
    assert [row.event_id for row in tiny.rows()] == recorded
    assert 0 < len(recorded) < len(ids)
    assert tiny.counters().recorded == len(recorded)
    assert tiny.counters().dropped == len(ids) - len(recorded)
    check_laws(tiny.rows(), tiny.opened())


def test_a_drain_makes_room(tiny: Capture, workers: list[Worker]) -> None:
    workers[0].call(fill, tiny)
    tiny.drain()
    before = len(tiny.rows())
    workers[0].call(fill, tiny, 10)
    tiny.finish()
    assert len(tiny.rows()) == before + 10


def test_the_end_of_a_recorded_range_is_never_lost(tiny: Capture, workers: list[Worker]) -> None:
    outer = workers[0].call(lambda: [tiny.begin("outer") for _ in range(5)])
    assert all(outer)
    workers[0].call(fill, tiny)
    workers[0].call(lambda: [tiny.end(event_id) for event_id in reversed(outer)])
    tiny.finish()
    ended = [row for row in tiny.rows() if row.name == "outer"]
    assert [row.event_id for row in ended] == outer[::-1]
    assert all(row.flags == 0 for row in ended)


def test_the_end_of_a_dropped_range_ends_nothing(tiny: Capture, workers: list[Worker]) -> None:
    def overfill() -> list[int]:
        ids = [tiny.begin(f"{depth}") for depth in range(900)]
        for event_id in reversed(ids):
            tiny.end(event_id)
        return ids

    ids = workers[0].call(overfill)
    tiny.finish()
    recorded = [event_id for event_id in ids if event_id]
    assert 0 < len(recorded) < len(ids)
    assert [row.event_id for row in tiny.rows()] == recorded[::-1]
    assert [row.parent for row in tiny.rows()] == [*recorded[-2::-1], 0]
    check_laws(tiny.rows(), tiny.opened())


def test_the_buffer_of_a_thread_stays_as_it_was_at_its_first_range(tiny: Capture, workers: list[Worker]) -> None:
    workers[0].call(fill, tiny, 1)
    tiny.recorder.start(1023, 8 << 20)
    assert 0 in workers[0].call(fill, tiny)
    assert 0 not in workers[1].call(fill, tiny)


def test_a_begin_that_is_not_recorded_is_not_the_first_range(recorder: Recorder, workers: list[Worker]) -> None:
    assert workers[0].call(recorder.begin, "nobody looks", USER, SOURCE) == 0
    assert 0 in workers[0].call(fill, Capture(recorder, buffer_bytes=TINY))


def test_nesting_deeper_than_the_limit_is_dropped(recorder: Recorder) -> None:
    capture = Capture(recorder)
    with workers_of(1) as [worker]:
        ids = worker.call(lambda: [capture.begin() for _ in range(MAX_DEPTH + 10)])
        assert all(ids[:MAX_DEPTH])
        assert not any(ids[MAX_DEPTH:])
        worker.call(lambda: [capture.end(event_id) for event_id in reversed(ids)])
        assert worker.call(capture.begin)
        capture.finish()
    assert capture.counters().recorded == MAX_DEPTH + 1
    assert capture.counters().dropped == 10
    assert [bool(row.flags & PARTIAL) for row in capture.rows()] == [False] * MAX_DEPTH + [True]


def test_waiting_tasks_leave_room_for_the_ranges_of_the_one_that_runs(capture: Capture) -> None:
    tasks = [capture.begin("task", flags=ASYNC) for _ in range(MAX_DEPTH)]
    nested = [capture.begin("nested") for _ in range(100)]
    assert 0 in tasks
    assert all(nested)
    for event_id in reversed(tasks + nested):
        capture.end(event_id)
