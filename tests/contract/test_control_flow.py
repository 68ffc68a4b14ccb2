"""Control flow that leaves a range by an exception is no failure, whatever made the range;
everything else is one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import greenlet
import pytest
from opentelemetry import trace

from helpers.step_program import Program
from otel_recfn.callbacks.record_function import RecordFunction


class Exit(enum.IntEnum):
    """A program's own names of exit codes."""

    WELL = 0
    BADLY = 2


class Cancelled(asyncio.CancelledError):
    """As libraries derive it."""


def exits_by(code: Any) -> BaseException:
    return SystemExit(code)


NO_FAILURES: list[BaseException] = [
    GeneratorExit(),
    StopIteration(1),
    StopAsyncIteration(),
    asyncio.CancelledError("no more"),
    Cancelled(),
    concurrent.futures.CancelledError(),
    greenlet.GreenletExit(),
    exits_by(0),
    exits_by(None),
    exits_by(False),
    exits_by(Exit.WELL),
]
FAILURES: list[BaseException] = [
    ValueError("no"),
    KeyboardInterrupt(),
    exits_by(1),
    exits_by("message"),
    exits_by(0.0),
    exits_by(Exit.BADLY),
    asyncio.TimeoutError(),
]


def by_with(program: Program, error: BaseException) -> None:
    with program.record_function("range"):
        raise error


def by_async_with(program: Program, error: BaseException) -> None:
    async def main() -> None:
        async with program.record_function("range"):
            raise error

    run(main())


def by_function(program: Program, error: BaseException) -> None:
    @program.record_function("range")
    def function() -> None:
        raise error

    function()


def by_coroutine(program: Program, error: BaseException) -> None:
    @program.record_function("range")
    async def function() -> None:
        await asyncio.sleep(0)
        raise error

    run(function())


def by_generator(program: Program, error: BaseException) -> None:
    @program.record_function("range")
    def function() -> Iterator[int]:
        yield 1

    generator: Any = function()
    next(generator)
    generator.throw(error)


def by_async_generator(program: Program, error: BaseException) -> None:
    @program.record_function("range")
    async def function() -> AsyncIterator[int]:
        yield 1

    generator: Any = function()
    run(generator.__anext__())
    run(generator.athrow(error))


def by_step(program: Program, error: BaseException) -> None:
    with program.step("range"):
        raise error


def by_async_step(program: Program, error: BaseException) -> None:
    async def main() -> None:
        async with program.step("range"):
            raise error

    run(main())


def by_function_that_is_a_step(program: Program, error: BaseException) -> None:
    @program.step("range")
    def function() -> None:
        raise error

    function()


def by_record_function_object(_program: Program, error: BaseException) -> None:
    with RecordFunction() as range_:
        range_.before("range")
        raise error


def run(awaitable: Any) -> Any:
    """To its end; an event loop would stop at a SystemExit."""
    steps = awaitable.__await__()
    try:
        while True:
            steps.send(None)
    except StopIteration as end:
        return end.value


SOURCES = [
    by_with,
    by_async_with,
    by_function,
    by_coroutine,
    by_generator,
    by_async_generator,
    by_step,
    by_async_step,
    by_function_that_is_a_step,
    by_record_function_object,
]
BECOMES_A_RUNTIME_ERROR: dict[Any, Any] = {
    by_coroutine: StopIteration,
    by_generator: StopIteration,
    by_async_generator: (StopIteration, StopAsyncIteration),
}
"""What Python doesn't let such a function raise."""


def left_by(
    program: Program, source: Callable[[Program, BaseException], None], error: BaseException
) -> tuple[bool, bool]:
    """Whether the range's span, and its row, say that it failed."""
    error.__traceback__ = None
    with program.tracer.start_as_current_span("request"), suppress(BaseException):
        source(program, error)
    (span,) = [span for span in program.spans() if span.name == "range"]
    (row,) = [row for row in program.rows.events() if row.name == "range"]
    assert bool(row.stacktrace) == bool(row.error)
    assert row.error or not (span.events or span.status.description)
    return span.status.status_code is trace.StatusCode.ERROR, bool(row.error)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("error", NO_FAILURES, ids=repr)
def test_control_flow_is_no_failure(program: Program, source: Any, error: BaseException) -> None:
    if isinstance(error, BECOMES_A_RUNTIME_ERROR.get(source, ())):
        assert left_by(program, source, error) == (True, True)
        return
    assert left_by(program, source, error) == (False, False)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("error", FAILURES, ids=repr)
def test_what_fails_stays_a_failure(program: Program, source: Any, error: BaseException) -> None:
    assert left_by(program, source, error) == (True, True)
    (row,) = [row for row in program.rows.events() if row.name == "range"]
    assert row.stacktrace.startswith("Traceback (most recent call last):\n")
    assert f'  File "{__file__}", line ' in row.stacktrace
    assert row.stacktrace.splitlines()[-1] == row.error


def test_what_was_raised_while_control_flow_was_handled_tells_of_it(program: Program) -> None:
    """A failure's stack trace names what it came of, also where that by itself is none."""
    error = KeyError("no more")
    error.__cause__ = StopIteration("the end")
    with suppress(KeyError), program.step("range"):
        raise error
    program.stop()
    (row,) = program.rows.events()
    assert "StopIteration: the end\n\nThe above exception was the direct cause" in row.stacktrace
