"""The public ``record_function`` of both recorders."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from recording_helpers import ASYNC, ERROR, Capture, Worker, by_name, check_laws

from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.protocol import Recorder, RecorderCounters


@pytest.fixture
def record_function(capture: Capture) -> type[Any]:
    return capture.recorder.record_function


def test_a_with_statement_is_a_range(capture: Capture, record_function: type[Any]) -> None:
    with record_function("outer") as outer:
        assert isinstance(outer, record_function)
        with record_function("inner", "args"):
            pass
    rows = by_name(capture.finish())
    assert rows["inner"].parent == rows["outer"].event_id
    assert {(row.scope, row.source) for row in rows.values()} == {(RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)}


def test_it_nests_with_other_ranges(capture: Capture, record_function: type[Any]) -> None:
    outer = capture.begin("outer")
    with record_function("middle"):
        capture.end(capture.begin("inner"))
    capture.end(outer)
    rows = by_name(capture.finish())
    assert rows["middle"].parent == outer
    assert rows["inner"].parent == rows["middle"].event_id


def test_attributes(record_function: type[Any]) -> None:
    assert (record_function("load").name, record_function("load").args) == ("load", None)
    assert (record_function(name="load", args="3").name, record_function("load", args="3").args) == ("load", "3")
    assert "load" in repr(record_function("load"))
    assert record_function.__name__ == "record_function"
    assert record_function.__module__ == "otel_recfn"


@pytest.mark.parametrize("wrong", [None, 3, b"load", len])
def test_a_name_that_is_no_str_is_refused_with_the_way_out(record_function: type[Any], wrong: object) -> None:
    with pytest.raises(TypeError, match=r"record_function\(\""):
        record_function(wrong)


def test_args_that_are_no_str_are_refused(record_function: type[Any]) -> None:
    with pytest.raises(TypeError, match="args"):
        record_function("load", 3)


def test_a_decorator_without_a_name_is_refused(record_function: type[Any]) -> None:
    with pytest.raises(TypeError, match="record_function"):

        @record_function
        def load() -> None: ...


def test_one_object_is_a_new_range_each_time(capture: Capture, record_function: type[Any]) -> None:
    range_ = record_function("again")
    for _ in range(3):
        with range_:
            pass
    rows = capture.finish()
    assert [row.name for row in rows] == ["again"] * 3
    assert len({row.event_id for row in rows}) == 3


def test_one_object_may_be_entered_while_it_is_open(capture: Capture, record_function: type[Any]) -> None:
    range_ = record_function("again")
    with range_, range_, range_:
        pass
    inner, middle, outer = capture.finish()
    assert (inner.parent, middle.parent, outer.parent) == (middle.event_id, outer.event_id, 0)
    assert not (inner.flags | middle.flags | outer.flags)


def test_entered_here_and_left_there(capture: Capture, record_function: type[Any], workers: list[Worker]) -> None:
    range_ = record_function("moving")
    workers[0].call(range_.__enter__)
    workers[1].call(range_.__exit__, None, None, None)
    [row] = capture.finish()
    assert row.flags == ASYNC
    assert row.end_thread.number != row.thread.number


def test_left_more_often_than_entered_ends_nothing(capture: Capture, record_function: type[Any]) -> None:
    with record_function("outer"):
        record_function("never entered").__exit__(None, None, None)
    [row] = capture.finish()
    assert (row.name, row.flags) == ("outer", 0)


def test_names_with_lone_surrogates(capture: Capture, record_function: type[Any]) -> None:
    with record_function("half \ud83e"):
        pass
    [row] = capture.finish()
    assert row.name == "half \\ud83e"


# --- exceptions


class HostError(Exception):
    pass


class BrokenError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\nsecond"), "ValueError: first\nsecond"),
        (HostError("host"), f"{__name__}.HostError: host"),
        (KeyError(), "KeyError"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
        (ValueError("\ud83e"), "ValueError: \\ud83e"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_exception_marks_the_range_and_goes_on(
    capture: Capture, record_function: type[Any], error: BaseException, text: str
) -> None:
    with pytest.raises(type(error)) as caught, record_function("outer"), record_function("inner"):
        raise error
    assert caught.value is error
    rows = by_name(capture.finish())
    assert (rows["inner"].flags, rows["inner"].error) == (ERROR, text)
    assert (rows["outer"].flags, rows["outer"].error) == (ERROR, text)
    assert rows["inner"].parent == rows["outer"].event_id


def test_a_generator_that_is_closed_early_has_not_failed(capture: Capture, record_function: type[Any]) -> None:
    def generator() -> Iterator[int]:
        with record_function("range"):
            yield 1

    for _ in generator():
        break
    gc.collect()
    [event] = capture.finish()
    assert (event.name, event.error, event.flags) == ("range", "", EventFlag.NONE)


def test_an_exception_without_a_text_stays_what_it_is(capture: Capture, record_function: type[Any]) -> None:
    with pytest.raises(BrokenError), record_function("range"):
        raise BrokenError
    [row] = capture.finish()
    assert row.flags == ERROR
    assert "BrokenError" in row.error


def test_exit_gives_nothing_true(record_function: type[Any]) -> None:
    range_ = record_function("range")
    range_.__enter__()
    assert not range_.__exit__(ValueError, ValueError("x"), None)


# --- not recording


def test_nothing_is_recorded_and_nothing_breaks_without_a_capture(recorder: Recorder) -> None:
    before = recorder.counters()

    @recorder.record_function("function")
    def function(value: int) -> int:
        return value

    with recorder.record_function("range"):
        assert function(3) == 3
    with pytest.raises(ValueError, match="x"), recorder.record_function("range"):
        raise ValueError("x")
    assert len(recorder.drain(close_open=True)) == 0
    assert recorder.counters() == before


def test_a_capture_that_begins_inside_a_range(recorder: Recorder) -> None:
    with recorder.record_function("before"):
        capture = Capture(recorder)
        with recorder.record_function("inside"):
            pass
    with recorder.record_function("after"):
        pass
    rows = by_name(capture.finish())
    assert set(rows) == {"inside", "after"}
    assert {row.parent for row in rows.values()} == {0}


# --- functions


def test_each_call_of_a_decorated_function_is_a_range(capture: Capture, record_function: type[Any]) -> None:
    @record_function("factorial")
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(3) == 6
    rows = capture.finish()
    assert [row.name for row in rows] == ["factorial"] * 4
    assert [row.parent for row in rows] == [row.event_id for row in rows[1:]] + [0]


def test_a_decorated_function_keeps_its_face(record_function: type[Any]) -> None:
    @record_function("documented")
    def documented(value: int, *, keyword: str = "k") -> str:
        """Says what it does."""
        return keyword * value

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Says what it does."
    assert documented(2, keyword="x") == "xx"
    assert list(inspect.signature(documented).parameters) == ["value", "keyword"]
    assert not inspect.isgeneratorfunction(documented)


def test_a_decorated_method(capture: Capture, record_function: type[Any]) -> None:
    class Loader:
        @record_function("load")
        def load(self) -> object:
            return self

        @staticmethod
        @record_function("static")
        def static() -> int:
            return 1

        @classmethod
        @record_function("class")
        def made(cls) -> type[Loader]:
            return cls

    loader = Loader()
    assert (loader.load(), loader.static(), loader.made()) == (loader, 1, Loader)
    assert [row.name for row in capture.finish()] == ["load", "static", "class"]


def test_a_decorated_function_that_raises(capture: Capture, record_function: type[Any]) -> None:
    @record_function("raises")
    def raises() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        raises()
    [row] = capture.finish()
    assert row.error == "ValueError: inside"


def test_a_decorated_function_in_many_threads(capture: Capture, record_function: type[Any], workers: list[Worker]) -> None:
    gate, inside = threading.Barrier(3, timeout=60), threading.Barrier(3, timeout=60)

    @record_function("shared")
    def shared() -> None:
        inside.wait()

    def run() -> None:
        gate.wait()
        shared()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    rows = capture.finish()
    assert [row.name for row in rows] == ["shared"] * 3
    assert not any(row.flags for row in rows)
    assert len({row.thread.number for row in rows}) == 3


def test_a_partial_and_a_callable_object(capture: Capture, record_function: type[Any]) -> None:
    class Adder:
        def __call__(self, a: int, b: int) -> int:
            return a + b

    assert record_function("partial")(functools.partial(max, 3))(4) == 4
    assert record_function("object")(Adder())(1, 2) == 3
    assert [row.name for row in capture.finish()] == ["partial", "object"]


def test_what_is_no_function_is_refused_with_the_way_out(record_function: type[Any]) -> None:
    class Model:
        pass

    with pytest.raises(TypeError, match="decorate its methods"):
        record_function("class")(Model)
    with pytest.raises(TypeError, match="below @classmethod"):
        record_function("method")(classmethod(lambda cls: cls))


# --- generators


def test_a_decorated_generator_is_one_range_from_first_next_to_exhaustion(capture: Capture, record_function: type[Any]) -> None:
    @record_function("batches")
    def batches(count: int) -> Generator[int, None, str]:
        for index in range(count):
            with record_function("inside"):
                yield index
        return "done"

    assert inspect.isgeneratorfunction(batches)
    generator = batches(2)
    assert capture.counters().recorded == 0
    assert [next(generator), next(generator)] == [0, 1]
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == "done"
    rows = capture.finish()
    assert [row.name for row in rows if row.name != "inside"] == ["batches"]
    assert rows[-1].flags == ASYNC
    check_laws(rows, capture.opened())


def test_a_suspended_generator_encloses_nothing(capture: Capture, record_function: type[Any]) -> None:
    @record_function("batches")
    def batches() -> Generator[int, None, None]:
        yield 1
        yield 2

    for _ in batches():
        with record_function("consumer"):
            pass
    rows = capture.finish()
    assert [(row.name, row.parent) for row in rows] == [("consumer", 0), ("consumer", 0), ("batches", 0)]


def test_a_generator_takes_what_is_sent_and_thrown(capture: Capture, record_function: type[Any]) -> None:
    @record_function("echo")
    def echo() -> Generator[object, object, None]:
        received: object = None
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error

    generator, error = echo(), KeyError("k")
    assert next(generator) is None
    assert generator.send("a") == "a"
    assert generator.throw(error) is error
    generator.close()
    [row] = capture.finish()
    assert row.error == ""  # closed early is closed well


def test_a_generator_that_raises(capture: Capture, record_function: type[Any]) -> None:
    @record_function("fails")
    def fails() -> Generator[int, None, None]:
        yield 1
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        list(fails())
    [row] = capture.finish()
    assert row.flags == ASYNC | ERROR
    assert row.error == "ValueError: inside"


def test_an_abandoned_generator_ends_its_range(capture: Capture, record_function: type[Any]) -> None:
    cleaned = []

    @record_function("abandoned")
    def abandoned() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            cleaned.append(True)

    next(abandoned())
    gc.collect()
    assert cleaned
    [row] = capture.drain()
    assert (row.name, row.error) == ("abandoned", "")


def test_a_generator_that_is_never_started_is_no_range(capture: Capture, record_function: type[Any]) -> None:
    record_function("unused")(lambda: (yield))()
    assert capture.finish() == []
    assert capture.counters() == RecorderCounters(0, 0, 0)
