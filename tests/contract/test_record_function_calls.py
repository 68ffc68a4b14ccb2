"""How ``record_function`` may be called, and what it says where it can't be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from recording_helpers import Capture

NAME = (
    "record_function takes a name, a str, not {}: "
    'write record_function("load batch"), also as a decorator: @record_function("load batch")'
)
ARGS = "record_function takes args as a str or None, not {}: pass str(args)"


def load() -> None: ...


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda make: make(), "record_function.__init__() missing 1 required positional argument: 'name'"),
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
        (lambda make: make("load", colour=3), "record_function.__init__() got an unexpected keyword argument 'colour'"),
        (lambda make: make("load", name="b"), "record_function.__init__() got multiple values for argument 'name'"),
        (lambda make: make(args="load"), "record_function.__init__() missing 1 required positional argument: 'name'"),
        (lambda make: make("load").__enter__(1), "record_function.__enter__() takes 1 positional argument but 2 were given"),
        (
            lambda make: make("load").__exit__(),
            "record_function.__exit__() missing 3 required positional arguments: 'kind', 'error', and 'traceback'",
        ),
        (
            lambda make: make("load").__aexit__(None),
            "record_function.__aexit__() missing 2 required positional arguments: 'error' and 'traceback'",
        ),
        (lambda make: make("load")(), "record_function.__call__() missing 1 required positional argument: 'func'"),
        (lambda make: make("load")(load, 1), "record_function.__call__() takes 2 positional arguments but 3 were given"),
        (
            lambda make: make("load")(3),
            "record_function decorates functions, and this is a int: put it below @int, next to the def",
        ),
        (lambda make: make("load")(int), "record_function decorates functions, and int is a class: decorate its methods"),
        (lambda make: type("mine", (make,), {}), "type 'otel_recfn.record_function' is not an acceptable base type"),
    ],
)
def test_what_is_refused(record_function: type[Any], call: Callable[[Any], object], text: str) -> None:
    with pytest.raises(TypeError) as refused:
        call(record_function)
    assert str(refused.value) == text


def test_arguments_by_keyword(capture: Capture, record_function: type[Any]) -> None:
    range_ = record_function(args="3", name="load")
    range_.__enter__()
    range_.__exit__(traceback=None, error=ValueError("no"), kind=ValueError)
    record_function("called")(func=load)()

    async def use() -> None:
        await range_.__aenter__()
        await range_.__aexit__(None, traceback=None, error=None)

    asyncio.run(use())
    rows = capture.finish()
    assert [(row.name, row.error) for row in rows] == [("load", "ValueError: no"), ("called", ""), ("load", "")]


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


def test_an_empty_name(capture: Capture, record_function: type[Any]) -> None:
    with record_function(""):
        pass
    assert [row.name for row in capture.finish()] == [""]
