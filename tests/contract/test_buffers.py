"""What doesn't fit: dropped, counted, and never at the price of nesting."""

from __future__ import annotations

import threading
import time

import pytest
from recording_helpers import ASYNC, PARTIAL, SOURCE, USER, Capture, Worker, check_laws, workers_of

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


def test_the_buffer_of_a_thread_is_never_made_smaller(recorder: Recorder, workers: list[Worker]) -> None:
    large = Capture(recorder, buffer_bytes=1 << 20)
    workers[0].call(fill, large, 1)
    recorder.start(1023, TINY)
    assert 0 not in workers[0].call(fill, large)


def test_a_begin_that_is_not_recorded_is_not_the_first_range(recorder: Recorder, workers: list[Worker]) -> None:
    assert workers[0].call(recorder.begin, "nobody looks", USER, SOURCE) == 0
    assert 0 in workers[0].call(fill, Capture(recorder, buffer_bytes=TINY))


@pytest.mark.one_python
def test_nesting_deeper_than_the_limit_is_dropped(recorder: Recorder) -> None:
    capture = Capture(recorder)
    with workers_of(1) as [worker]:
        ids = worker.call(lambda: [capture.begin() for _ in range(LIMITS["MAX_DEPTH"] + 10)])
        assert all(ids[: LIMITS["MAX_DEPTH"]])
        assert not any(ids[LIMITS["MAX_DEPTH"] :])
        worker.call(lambda: [capture.end(event_id) for event_id in reversed(ids)])
        assert worker.call(capture.begin)
        capture.finish()
    assert len(capture.rows()) == LIMITS["MAX_DEPTH"] + 1
    assert capture.counters().dropped == 10
    assert [bool(row.flags & PARTIAL) for row in capture.rows()] == [False] * LIMITS["MAX_DEPTH"] + [True]


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


@pytest.mark.one_python
def test_a_thread_that_writes_more_and_more_between_drains(recorder: Recorder, workers: list[Worker]) -> None:
    capture = Capture(recorder, buffer_bytes=1 << 21)

    def work(count: int) -> None:
        outer = capture.begin(f"outer {count}")
        for index in range(count):
            capture.end(capture.begin(f"inner {index % 100}"))
        capture.end(outer)

    left_open = workers[0].call(capture.begin, "open throughout")
    for count in (10, 300, 3000, 10, 15000, 3000, 15000):
        workers[0].call(work, count)
        rows = capture.drain()
        assert [row.name for row in rows] == [f"inner {index % 100}" for index in range(count)] + [f"outer {count}"]
        assert {row.parent for row in rows[:-1]} == {rows[-1].event_id}
        assert rows[-1].parent == left_open
    workers[0].call(capture.end, left_open)
    capture.finish()
    assert capture.counters().dropped == 0
    check_laws(capture.rows(), capture.opened())


@pytest.mark.one_python
def test_drains_while_a_thread_writes_more_than_it_did(recorder: Recorder, workers: list[Worker]) -> None:
    capture = Capture(recorder, buffer_bytes=1 << 22)
    done = threading.Event()

    def work() -> None:
        for index in range(30_000):
            capture.end(capture.begin(f"{index % 5000}"))
        done.set()

    working = threading.Thread(target=work)
    working.start()
    while not done.is_set():
        capture.drain()
    working.join()
    capture.finish()
    assert len(capture.rows()) == 30_000 - capture.counters().dropped
    if not capture.counters().dropped:
        assert [int(row.name) for row in capture.rows()] == [index % 5000 for index in range(30_000)]
    check_laws(capture.rows(), capture.opened())


@pytest.mark.one_python
def test_thousands_of_threads_at_once(recorder: Recorder) -> None:
    capture = Capture(recorder)
    count, together, go_on = 1500, threading.Barrier(1501), threading.Event()

    def work(number: int) -> None:
        capture.end(capture.begin(f"first {number}"))
        together.wait(PATIENCE_S)
        assert go_on.wait(PATIENCE_S)
        capture.end(capture.begin(f"second {number}"))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    before = threading.stack_size(256 << 10)
    for thread in threads:
        thread.start()
    threading.stack_size(before)
    together.wait(PATIENCE_S)
    assert {row.name for row in capture.drain()} == {f"first {number}" for number in range(count)}
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {row.name for row in capture.finish()} == {f"second {number}" for number in range(count)}
    assert capture.counters().dropped == 0


def test_a_wait_ends_when_it_is_woken_also_before_it_began(recorder: Recorder) -> None:
    recorder.wake()
    began = time.monotonic()
    recorder.wait(PATIENCE_S)
    waker = threading.Timer(0.05, recorder.wake)
    waker.start()
    recorder.wait(PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S
    recorder.wait(0.01)


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


@pytest.mark.one_python
def test_a_context_reader_that_leaves_ranges_open_at_the_deepest_place(capture: Capture, workers: list[Worker]) -> None:
    left_open: list[int] = []

    def read() -> None:
        if not left_open:
            left_open.append(1)
            left_open.extend(capture.begin("of the reader") for _ in range(5))

    def fill() -> list[int]:
        ids = [capture.begin() for _ in range(LIMITS["MAX_DEPTH"] - 3)]
        capture.recorder.set_context_reader(read)
        capture.recorder.context_attached(object())
        return [*ids, capture.begin("one too many")]

    ids = workers[0].call(fill)
    assert not ids[-1]
    assert sum(bool(event_id) for event_id in [*ids, *left_open[1:]]) == LIMITS["MAX_DEPTH"]
    workers[0].call(lambda: [capture.end(event_id) for event_id in [*left_open[:0:-1], *reversed(ids)]])
    capture.recorder.set_context_reader(None)
    assert workers[0].call(capture.begin, "after")
    rows = capture.finish()
    assert len(rows) == LIMITS["MAX_DEPTH"] + 1
    assert (len(capture.rows()), capture.counters().dropped) == (LIMITS["MAX_DEPTH"] + 1, 3)
