"""record_function as a decorator: of functions, methods, generators; its ranges say which
function that is, and where.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

import otel_recfn
from helpers.recording_helpers import ASYNC, Capture, check_laws
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import add_thread_local_callback
from otel_recfn.model.events import RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import RecorderCounters
from otel_recfn.support.code_names import called_code, code_text, python_call_name


def test_each_call_of_a_decorated_function_is_a_range(
    capture: Capture, record_function: type[Any]
) -> None:
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


def test_a_decorated_generator_is_one_range_from_first_next_to_exhaustion(
    capture: Capture, record_function: type[Any]
) -> None:
    @record_function("batches")
    def batches(count: int) -> Generator[int, None, str]:
        for index in range(count):
            with record_function("inside"):
                yield index
        return "done"

    assert inspect.isgeneratorfunction(batches)
    generator = batches(2)
    assert len(capture.rows()) == 0
    assert [next(generator), next(generator)] == [0, 1]
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == "done"
    rows = capture.finish()
    assert [row.name for row in rows if row.name != "inside"] == ["batches"]
    assert rows[-1].flags == ASYNC
    check_laws(rows, capture.opened())


def test_a_suspended_generator_encloses_nothing(
    capture: Capture, record_function: type[Any]
) -> None:
    @record_function("batches")
    def batches() -> Generator[int, None, None]:
        yield 1
        yield 2

    for _ in batches():
        with record_function("consumer"):
            pass
    rows = capture.finish()
    assert [(row.name, row.parent) for row in rows] == [
        ("consumer", 0),
        ("consumer", 0),
        ("batches", 0),
    ]


def test_a_generator_takes_what_is_sent_and_thrown(
    capture: Capture, record_function: type[Any]
) -> None:
    @record_function("echo")
    def echo() -> Generator[object, object, None]:
        received: object = None
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error

    generator = echo()
    error = KeyError("k")
    assert next(generator) is None
    assert generator.send("a") == "a"
    assert generator.throw(error) is error
    generator.close()
    [row] = capture.finish()
    assert row.error == ""  # closed early is closed well


def test_an_abandoned_generator_ends_its_range(
    capture: Capture, record_function: type[Any]
) -> None:
    cleaned = []

    @record_function("abandoned")
    def abandoned() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            cleaned.append(True)

    next(abandoned())
    assert cleaned
    [row] = capture.drain()
    assert (row.name, row.error) == ("abandoned", "")


def test_a_generator_that_is_never_started_is_no_range(
    capture: Capture, record_function: type[Any]
) -> None:
    record_function("unused")(lambda: (yield))()
    assert capture.finish() == []
    assert capture.counters() == RecorderCounters()


class Called:
    def __call__(self) -> None:
        pass


def wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper() -> Any:
        return function()

    return wrapper


def plain() -> None:
    pass


def yields() -> Iterator[int]:
    yield 1


async def waits() -> None:
    pass


async def waits_and_yields() -> AsyncIterator[int]:
    yield 1


async def consume(made: AsyncIterator[int]) -> None:
    async for _ in made:
        pass


RUNS: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "function": (plain, lambda decorated: decorated(), plain),
    "wrapped": (wraps(plain), lambda decorated: decorated(), plain),
    "callable object": (Called(), lambda decorated: decorated(), Called.__call__),
    "generator": (yields, lambda decorated: list(decorated()), yields),
    "coroutine": (waits, lambda decorated: asyncio.run(decorated()), waits),
    "async generator": (
        waits_and_yields,
        lambda decorated: asyncio.run(consume(decorated())),
        waits_and_yields,
    ),
}


def expected(function: Any) -> str:
    code = function.__code__
    return python_call_name(
        code.co_filename, code.co_firstlineno, f"{__name__}.{function.__qualname__}"
    )


@pytest.mark.parametrize("kind", RUNS)
def test_a_decorated_function(capture: Capture, kind: str) -> None:
    function, run, written = RUNS[kind]
    decorated = otel_recfn.record_function("named otherwise")(function)
    for _ in range(2):
        run(decorated)
    rows = capture.finish()
    assert [(row.name, row.code) for row in rows] == [("named otherwise", expected(written))] * 2
    assert called_code(rows[0].code).line == written.__code__.co_firstlineno


def test_one_that_is_written_in_c_or_no_function_says_nothing(capture: Capture) -> None:
    otel_recfn.record_function("len")(len)([])
    assert otel_recfn.record_function("partial")(functools.partial(max, 3))(4) == 4
    with otel_recfn.record_function("with"):
        pass
    assert [row.code for row in capture.finish()] == ["", "", ""]


def test_also_where_a_callback_sees_the_range(runtime: Recorder) -> None:
    add_thread_local_callback(
        RecordFunctionCallback(lambda range_: None).scopes({RecordScope.USER_SCOPE})
    )
    capture = Capture(runtime)
    decorated = otel_recfn.record_function("observed")(plain)
    decorated()
    asyncio.run(otel_recfn.record_function("async")(waits)())
    assert {row.name: row.code for row in capture.finish()} == {
        "observed": expected(plain),
        "async": expected(waits),
    }


def test_a_function_that_tells_nothing_of_itself_is_decorated_all_the_same(
    capture: Capture,
) -> None:
    class Secret(Called):
        def __getattribute__(self, name: str) -> Any:
            if name == "__wrapped__":
                raise RuntimeError(f"no {name}")
            return super().__getattribute__(name)

    assert code_text(Secret()) == ""
    otel_recfn.record_function("secret")(Secret())()
    assert [row.code for row in capture.finish()] == [""]
