"""Ranges of decorated functions say which function that is, and where it is written; others say nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from recording_helpers import Capture

from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.registry import add_thread_local_callback
from otel_recfn.model.events import RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.support.texts import called_code, code_text, python_call_name


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
    "async generator": (waits_and_yields, lambda decorated: asyncio.run(consume(decorated())), waits_and_yields),
}


def expected(function: Any) -> str:
    code = function.__code__
    return python_call_name(code.co_filename, code.co_firstlineno, f"{__name__}.{function.__qualname__}")


@pytest.mark.parametrize("kind", RUNS)
def test_a_decorated_function(capture: Capture, kind: str) -> None:
    function, run, written = RUNS[kind]
    decorated = capture.recorder.record_function("named otherwise")(function)
    for _ in range(2):
        run(decorated)
    rows = capture.finish()
    assert [(row.name, row.code) for row in rows] == [("named otherwise", expected(written))] * 2
    assert called_code(rows[0].code).line == written.__code__.co_firstlineno


def test_one_that_is_written_in_c_or_no_function_says_nothing(capture: Capture) -> None:
    capture.recorder.record_function("len")(len)([])
    with capture.recorder.record_function("with"):
        pass
    assert [row.code for row in capture.finish()] == ["", ""]


def test_also_where_a_callback_sees_the_range(runtime: Recorder) -> None:
    add_thread_local_callback(RecordFunctionCallback(lambda range_: None).scopes({RecordScope.USER_SCOPE}))
    capture = Capture(runtime)
    decorated = runtime.record_function("observed")(plain)
    decorated()
    asyncio.run(runtime.record_function("async")(waits)())
    assert {row.name: row.code for row in capture.finish()} == {"observed": expected(plain), "async": expected(waits)}


def test_a_function_that_tells_nothing_of_itself_is_decorated_all_the_same(capture: Capture) -> None:
    class Secret(Called):
        def __getattribute__(self, name: str) -> Any:
            if name == "__wrapped__":
                raise RuntimeError(f"no {name}")
            return super().__getattribute__(name)

    assert code_text(Secret()) == ""
    capture.recorder.record_function("secret")(Secret())()
    assert [row.code for row in capture.finish()] == [""]
