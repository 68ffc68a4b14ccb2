"""The public ``record_function``: as a range, how it may be called, and what it says where it
can't be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import otel_recfn
from helpers.recording_helpers import CROSSING, ERROR, Capture, Worker, by_name
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder


def test_a_with_statement_is_a_range(capture: Capture, record_function: type[Any]) -> None:
    with record_function("outer") as outer:
        assert isinstance(outer, record_function)
        with record_function("inner", "args"):
            pass
    rows = by_name(capture.finish())
    assert rows["inner"].parent == rows["outer"].event_id
    assert {(row.scope, row.source) for row in rows.values()} == {
        (RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)
    }


def test_attributes(record_function: type[Any]) -> None:
    assert (record_function("load").name, record_function("load").args) == ("load", None)
    assert (
        record_function(name="load", args="3").name,
        record_function("load", args="3").args,
    ) == ("load", "3")
    assert "load" in repr(record_function("load"))
    assert record_function.__name__ == "record_function"
    assert record_function.__module__ == "otel_recfn"


def test_one_object_is_a_new_range_each_time(capture: Capture, record_function: type[Any]) -> None:
    range_ = record_function("again")
    for _ in range(3):
        with range_:
            pass
    rows = capture.finish()
    assert [row.name for row in rows] == ["again"] * 3
    assert len({row.event_id for row in rows}) == 3


def test_one_object_may_be_entered_while_it_is_open(
    capture: Capture, record_function: type[Any]
) -> None:
    range_ = record_function("again")
    with range_, range_, range_:
        pass
    inner, middle, outer = capture.finish()
    assert (inner.parent, middle.parent, outer.parent) == (middle.event_id, outer.event_id, 0)
    assert not (inner.flags | middle.flags | outer.flags)


def test_entered_here_and_left_there(
    capture: Capture, record_function: type[Any], workers: list[Worker]
) -> None:
    range_ = record_function("moving")
    workers[0].call(range_.__enter__)
    workers[1].call(range_.__exit__, None, None, None)
    [row] = capture.finish()
    assert row.flags == CROSSING
    assert row.end_thread.number != row.thread.number


def test_left_more_often_than_entered_ends_nothing(
    capture: Capture, record_function: type[Any]
) -> None:
    with record_function("outer"):
        record_function("never entered").__exit__(None, None, None)
    [row] = capture.finish()
    assert (row.name, row.flags) == ("outer", 0)


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


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class UnreadableError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit("no attributes")


@pytest.mark.parametrize("kind", [BrokenError, ExitingError, UnreadableError])
def test_an_exception_without_a_text_stays_what_it_is(
    capture: Capture, record_function: type[Any], kind: type[Exception]
) -> None:
    left_by = None
    try:
        with record_function("range"):
            raise kind
    except BaseException as error:  # pytest.raises would read its attributes
        left_by = type(error)
    assert left_by is kind
    [row] = capture.finish()
    assert row.flags == ERROR
    assert row.error.partition(":")[0] in (f"{__name__}.{kind.__name__}", "Exception")


class TextExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class AttributesExitError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(f"no {name}")


@pytest.mark.parametrize("kind", [TextExitsError, AttributesExitError])
def test_what_an_exceptions_own_code_raises_does_not_replace_it(
    capture: Capture, record_function: type[Any], kind: type[Exception]
) -> None:
    left_as: list[type[BaseException]] = []
    try:
        with record_function("range"):
            raise kind
    except BaseException as error:
        left_as.append(type(error))
    assert left_as == [kind]
    [row] = capture.finish()
    assert row.flags == ERROR


def test_nothing_is_recorded_and_nothing_breaks_without_a_capture(recorder: Recorder) -> None:
    before = recorder.counters()

    @otel_recfn.record_function("function")
    def function(value: int) -> int:
        return value

    with otel_recfn.record_function("range"):
        assert function(3) == 3
    with pytest.raises(ValueError, match="x"), otel_recfn.record_function("range"):
        raise ValueError("x")
    assert len(recorder.drain(close_open=True)) == 0
    assert recorder.counters() == before


def test_a_capture_that_begins_inside_a_range(recorder: Recorder) -> None:
    with otel_recfn.record_function("before"):
        capture = Capture(recorder)
        with otel_recfn.record_function("inside"):
            pass
    with otel_recfn.record_function("after"):
        pass
    rows = by_name(capture.finish())
    assert set(rows) == {"inside", "after"}
    assert {row.parent for row in rows.values()} == {0}


NAME = (
    "record_function takes a name, a str, not {}: "
    'write record_function("load batch"), also as a decorator: @record_function("load batch")'
)


ARGS = "record_function takes args as a str or None, not {}: pass str(args)"


def load() -> None: ...


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda make: make(),
            "record_function.__init__() missing 1 required positional argument: 'name'",
        ),
        (lambda make: make(None), NAME.format("NoneType")),
        (lambda make: make(3), NAME.format("int")),
        (lambda make: make(b"load"), NAME.format("bytes")),
        (lambda make: make(load), NAME.format("function")),
        (lambda make: make(name=3), NAME.format("int")),
        (lambda make: make("load", 3), ARGS.format("int")),
        (lambda make: make("load", args=["a"]), ARGS.format("list")),
        (
            lambda make: make("load", None, 3),
            "record_function.__init__() takes from 2 to 3 positional arguments but 4 were given",
        ),
        (
            lambda make: make("load", colour=3),
            "record_function.__init__() got an unexpected keyword argument 'colour'",
        ),
        (
            lambda make: make("load", name="b"),
            "record_function.__init__() got multiple values for argument 'name'",
        ),
        (
            lambda make: make(args="load"),
            "record_function.__init__() missing 1 required positional argument: 'name'",
        ),
        (lambda make: make("load").__enter__(1), "record_function.__enter__() takes no arguments"),
        (
            lambda make: make("load").__exit__(),
            "record_function.__exit__() takes a type, an error and a traceback, or None for each",
        ),
        (
            lambda make: make("load").__aexit__(None),
            "record_function.__aexit__ expected 3 arguments, got 1",
        ),
        (lambda make: make("load")(), "record_function.__call__ expected 1 argument, got 0"),
        (lambda make: make("load")(load, 1), "record_function.__call__ expected 1 argument, got 2"),
        (
            lambda make: make("load")(3),
            (
                "record_function decorates functions, and this is a int: put it below @int, next to"
                " the def"
            ),
        ),
        (
            lambda make: make("load")(int),
            "record_function decorates functions, and int is a class: decorate its methods",
        ),
        (
            lambda make: type("mine", (make,), {}),
            "type 'otel_recfn.record_function' is not an acceptable base type",
        ),
    ],
)
def test_what_is_refused(
    record_function: type[Any], call: Callable[[Any], object], text: str
) -> None:
    with pytest.raises(TypeError) as refused:
        call(record_function)
    assert str(refused.value) == text


def test_arguments_by_keyword(capture: Capture, record_function: type[Any]) -> None:
    range_ = record_function(args="3", name="load")
    range_.__enter__()
    range_.__exit__(ValueError, ValueError("no"), None)
    assert [(row.name, row.error) for row in capture.finish()] == [("load", "ValueError: no")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("load",), "record_function('load')"),
        (("load", None), "record_function('load')"),
        (("load", ""), "record_function('load', '')"),
        (("it's", "\ud83e\n"), """record_function("it's", '\\ud83e\\n')"""),
    ],
)
def test_repr(record_function: type[Any], arguments: tuple[Any, ...], text: str) -> None:
    assert repr(record_function(*arguments)) == text


@pytest.mark.parametrize("attribute", ["name", "args", "mine"])
def test_an_object_stays_what_it_is(record_function: type[Any], attribute: str) -> None:
    with pytest.raises(AttributeError):
        setattr(record_function("load"), attribute, "other")
