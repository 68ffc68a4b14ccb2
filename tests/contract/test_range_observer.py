"""``record_function`` hands its ranges to a range observer while one is set, and records them itself otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recording_helpers import Capture, Worker, reset

from otel_recfn.model.events import EventFlag
from otel_recfn.recording.recorder import Recorder


class Handle:
    """Notes how its range ended; recorded under the event id that it was made with."""

    def __init__(self, log: list[Any], name: str, event_id: int = 0) -> None:
        self.log, self.name, self.event_id, self.stacktrace = log, name, event_id, ""

    def end(self, error: str = "", stacktrace: str = "") -> None:
        self.stacktrace = stacktrace
        self.log.append(("end", self.name, error))


class Observer:
    """Notes what it is handed."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def __call__(self, name: str, args: str | None, flags: int, code: str) -> Handle:
        self.log.append(("begin", name, args, flags))
        return Handle(self.log, name)


@pytest.fixture
def observer(recorder: Recorder) -> Iterator[Observer]:
    observer = Observer()
    recorder.set_range_observer(observer)
    yield observer
    recorder.set_range_observer(None)


def sync(name: str) -> list[Any]:
    return [("begin", name, None, 0), ("end", name, "")]


def asynchronous(name: str) -> list[Any]:
    return [("begin", name, None, EventFlag.ASYNC), ("end", name, "")]


def test_with_hands_over_name_and_args(recorder: Recorder, observer: Observer) -> None:
    with recorder.record_function("load", "batch 7"):
        assert observer.log == [("begin", "load", "batch 7", 0)]
    assert observer.log[1:] == [("end", "load", "")]


def test_async_with_is_asynchronous(recorder: Recorder, observer: Observer) -> None:
    async def fetch() -> None:
        async with recorder.record_function("fetch"):
            await asyncio.sleep(0)

    asyncio.run(fetch())
    assert observer.log == asynchronous("fetch")


def run_function(record_function: Any) -> None:
    record_function("called")(lambda: None)()


def run_generator(record_function: Any) -> None:
    @record_function("called")
    def generate() -> Iterator[int]:
        yield 1
        yield 2

    assert list(generate()) == [1, 2]


def run_coroutine(record_function: Any) -> None:
    @record_function("called")
    async def work() -> None:
        await asyncio.sleep(0)

    asyncio.run(work())


def run_async_generator(record_function: Any) -> None:
    @record_function("called")
    async def generate() -> Any:
        yield 1

    async def consume() -> None:
        assert [item async for item in generate()] == [1]

    asyncio.run(consume())


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run_function, sync("called")),
        (run_generator, asynchronous("called")),
        (run_coroutine, asynchronous("called")),
        (run_async_generator, asynchronous("called")),
    ],
)
def test_each_call_of_a_decorated_function(
    recorder: Recorder, observer: Observer, run: Callable[[Any], None], expected: list[Any]
) -> None:
    run(recorder.record_function)
    assert observer.log == expected


def test_recording_or_not_nothing_is_recorded_beside_it(capture: Capture, observer: Observer) -> None:
    with capture.recorder.record_function("load"):
        pass
    capture.finish()
    assert capture.rows() == []
    assert observer.log == sync("load")


def test_a_capture_that_starts_and_stops_leaves_it_set(recorder: Recorder, observer: Observer) -> None:
    Capture(recorder).finish()
    assert not recorder.recording
    with recorder.record_function("load"):
        pass
    assert observer.log == sync("load")


def test_the_error_of_a_recorded_range_goes_to_its_handle(recorder: Recorder) -> None:
    log: list[Any] = []
    recorder.set_range_observer(lambda name, args, flags, code: Handle(log, name, event_id=1 << 40))
    with pytest.raises(ValueError, match="seven"), recorder.record_function("load"):
        raise ValueError("seven")
    recorder.set_range_observer(None)
    assert log == [("end", "load", "ValueError: seven")]


def test_ranges_end_the_way_they_began(capture: Capture, observer: Observer) -> None:
    recorder = capture.recorder
    observed, recorded = recorder.record_function("observed"), recorder.record_function("recorded")
    observed.__enter__()
    recorder.set_range_observer(None)
    recorded.__enter__()
    recorder.set_range_observer(observer)
    recorded.__exit__(None, None, None)
    observed.__exit__(None, None, None)
    assert observer.log == sync("observed")
    capture.finish()
    assert [row.name for row in capture.rows()] == ["recorded"]


def test_one_object_entered_twice_keeps_both_handles(recorder: Recorder, observer: Observer) -> None:
    range_ = recorder.record_function("load")
    with range_, range_:
        pass
    assert observer.log == [sync("load")[0]] * 2 + [sync("load")[1]] * 2


def test_what_the_observer_raises_goes_on_to_the_program(recorder: Recorder) -> None:
    def interrupt(name: str, args: str | None, flags: int, code: str) -> Handle:
        raise KeyboardInterrupt

    recorder.set_range_observer(interrupt)
    range_ = recorder.record_function("load")
    with pytest.raises(KeyboardInterrupt):
        range_.__enter__()
    recorder.set_range_observer(None)
    range_.__exit__(None, None, None)  # it was never entered


def test_the_handle_of_a_range_that_is_never_left_is_let_go(recorder: Recorder) -> None:
    gone: list[str] = []

    class Watched(Handle):
        def __del__(self) -> None:
            gone.append(self.name)

    recorder.set_range_observer(lambda name, args, flags, code: Watched([], name))
    range_ = recorder.record_function("load")
    range_.__enter__()
    recorder.set_range_observer(None)
    range_.__enter__()
    del range_
    assert gone == ["load"]


def observed_of(recorder: Recorder, observer: Observer, ranges: int) -> list[bool]:
    """Which of so many ranges are handed over."""
    found = []
    for _ in range(ranges):
        observer.log.clear()
        with recorder.record_function("load"):
            pass
        found.append(bool(observer.log))
    return found


def test_what_the_observer_leaves_the_recorder_alone_sees(capture: Capture) -> None:
    recorder, observer = capture.recorder, Observer()
    recorder.set_range_observer(observer, 7)
    left = recorder.leave_unobserved(2, 7)
    assert observed_of(recorder, observer, 3) == [False] * left + [True] * (3 - left)
    recorder.set_range_observer(None)
    assert len(capture.finish()) == left


def test_what_it_leaves_is_the_threads_own_and_can_be_taken_back(recorder: Recorder, workers: list[Worker]) -> None:
    observer = Observer()
    recorder.set_range_observer(observer, 7)
    left = recorder.leave_unobserved(3, 7)
    assert workers[0].call(observed_of, recorder, observer, 2) == [True, True]
    assert observed_of(recorder, observer, 1) == [left == 0]
    assert recorder.take_back_unobserved() == max(0, left - 1)
    assert observed_of(recorder, observer, 1) == [True]
    assert recorder.take_back_unobserved() == 0
    recorder.set_range_observer(None)


def test_what_an_earlier_test_left_is_observed_in_the_next(recorder: Recorder) -> None:
    observer = Observer()
    recorder.set_range_observer(observer)
    recorder.leave_unobserved(3, 0)
    reset(recorder)
    assert observed_of(recorder, observer, 1) == [True]
    recorder.set_range_observer(None)


def test_what_it_leaves_holds_for_its_version_alone(recorder: Recorder) -> None:
    observer = Observer()
    recorder.set_range_observer(observer, 7)
    assert recorder.leave_unobserved(3, 6) == 0
    recorder.leave_unobserved(3, 7)
    recorder.set_range_observer(observer, 8)
    assert observed_of(recorder, observer, 1) == [True]
    assert recorder.take_back_unobserved() == 0
    recorder.set_range_observer(None)
