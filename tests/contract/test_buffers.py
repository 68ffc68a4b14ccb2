"""What doesn't fit: dropped, counted, and never at the price of nesting."""

from __future__ import annotations

import threading

import pytest
from recording_helpers import ASYNC, SOURCE, USER, Capture, Worker, check_laws, workers_of

from otel_recfn._native import LIMITS
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES
from patience import PATIENCE_S

TINY = 4096  # 10,000 ranges overfill it


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
    assert tiny.counters().dropped == len(ids) - len(recorded)
    check_laws(tiny.rows(), tiny.opened())


@pytest.mark.one_python
def test_a_thread_that_recorded_before_may_fill_what_is_allowed_now(recorder: Recorder, workers: list[Worker]) -> None:
    tiny = Capture(recorder, buffer_bytes=TINY)
    workers[0].call(fill, tiny)
    tiny.finish()
    capture = Capture(recorder, buffer_bytes=1 << 20)
    workers[0].call(fill, capture, 20_000)
    assert len(capture.finish()) == 20_000
    assert capture.counters().dropped == 0


def test_a_profile_loses_none_of_many_ranges_that_nobody_drains_meanwhile(recorder: Recorder) -> None:
    capture = Capture(recorder, buffer_bytes=PROFILE_BUFFER_BYTES)
    with workers_of(1) as [worker]:
        worker.call(fill, capture, 300_000)  # more than 8 MiB
    recorder.stop()
    assert len(recorder.drain(close_open=True)) == 300_000
    assert capture.counters().dropped == 0


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


@pytest.mark.one_python
def test_waiting_tasks_leave_room_for_the_ranges_of_the_one_that_runs(capture: Capture) -> None:
    tasks = [capture.begin("task", flags=ASYNC) for _ in range(LIMITS["MAX_DEPTH"])]
    nested = [capture.begin("nested") for _ in range(100)]
    assert 0 in tasks
    assert all(nested)
    for event_id in reversed(tasks + nested):
        capture.end(event_id)


def test_new_names_and_shapes_fill_a_buffer_with_their_ranges(recorder: Recorder, workers: list[Worker]) -> None:
    capture = Capture(recorder, buffer_bytes=1 << 16)

    def work() -> dict[int, str]:
        ids: dict[int, str] = {}
        for index in range(500):
            shapes = {"shapes": f"[[{index}]]" + " " * 500, "dtypes": '["float32"]'}
            ids[recorder.begin(f"{index}", USER, SOURCE, **shapes)] = f"{index}"  # type: ignore[arg-type]
            recorder.end(max(ids))
        return ids

    ids = workers[0].call(work)
    capture.finish()
    assert 0 < len(capture.rows()) == 500 - capture.counters().dropped < 500
    assert {row.event_id: row.name for row in capture.rows()} == {number: name for number, name in ids.items() if number}
    assert all(row.shapes.strip() == f"[[{row.name}]]" for row in capture.rows())


def test_a_thread_that_fills_a_quarter_of_its_buffer_ends_the_wait(recorder: Recorder, workers: list[Worker]) -> None:
    capture = Capture(recorder, buffer_bytes=1 << 20)
    recorder.wait(0)
    waiting = threading.Thread(target=recorder.wait, args=(2 * PATIENCE_S,))
    waiting.start()
    workers[0].call(lambda: [capture.end(capture.begin("same")) for _ in range((1 << 20) // 32 // 3)])
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    capture.finish()
    assert capture.counters().dropped == 0
