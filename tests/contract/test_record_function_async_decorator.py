"""``record_function`` as decorator of coroutines and asynchronous generators."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from recording_helpers import ASYNC, Capture, by_name, parents


def test_a_decorated_coroutine(capture: Capture, record_function: type[Any]) -> None:
    @record_function("fetch")
    async def fetch(value: int, *, keyword: int = 0) -> int:
        """Fetches."""
        await asyncio.sleep(0)
        with record_function(f"in {value}"):
            return value + keyword

    assert inspect.iscoroutinefunction(fetch)
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetches.")

    async def main() -> list[int]:
        return await asyncio.gather(*(fetch(value, keyword=10) for value in range(3)))

    assert asyncio.run(main()) == [10, 11, 12]
    rows = capture.finish()
    fetches = {row.event_id for row in rows if row.name == "fetch"}
    assert len(fetches) == 3
    assert {row.parent for row in rows if row.name.startswith("in ")} == fetches


def test_a_decorated_async_generator(capture: Capture, record_function: type[Any]) -> None:
    @record_function("stream")
    async def stream() -> AsyncGenerator[int, str]:
        for index in range(2):
            with record_function(f"inside {index}"):
                await asyncio.sleep(0)
            yield index

    async def main() -> None:
        assert inspect.isasyncgenfunction(stream)
        async for index in stream():
            with record_function(f"consumer {index}"):
                pass

    asyncio.run(main())
    rows = capture.finish()
    assert parents(rows) == {
        "stream": "",
        "inside 0": "stream",
        "inside 1": "stream",
        "consumer 0": "",
        "consumer 1": "",
    }
    assert by_name(rows)["stream"].flags == ASYNC


@pytest.mark.parametrize("consumed_in_a_range", [False, True])
def test_a_generator_goes_on_in_its_range_after_what_it_had_open_over_a_yield(
    consumed_in_a_range: bool, capture: Capture, record_function: type[Any]
) -> None:
    @record_function("plain")
    def plain() -> Iterator[int]:
        with record_function("open over a yield"):
            yield 1
        with record_function("then"):
            pass
        yield 2
        with record_function("at last"):
            pass

    with record_function("around"):
        items = plain()
        next(items)
        with record_function("consumer") if consumed_in_a_range else nullcontext():
            next(items)
        assert list(items) == []
    found = parents(capture.finish())
    assert found["open over a yield"] == found["at last"] == "plain"
    assert found["then"] == ("consumer" if consumed_in_a_range else "plain")
    assert found["plain"] == "around"


@pytest.mark.parametrize("ends", ["is resumed", "is thrown into"])
def test_an_async_generator_goes_on_in_its_range_after_what_it_had_open_over_a_yield(
    ends: str, capture: Capture, record_function: type[Any]
) -> None:
    @record_function("generator")
    async def generator() -> AsyncGenerator[int, None]:
        try:
            async with record_function("outer"):
                with record_function("inner"):
                    yield 1
                with record_function("after inner"):
                    pass
        except KeyError:
            pass
        with record_function("after outer"):
            yield 2

    async def main() -> None:
        items = generator()
        assert await items.__anext__() == 1
        assert await (items.__anext__() if ends == "is resumed" else items.athrow(KeyError("k"))) == 2
        with record_function("consumer"):
            pass
        assert [item async for item in items] == []

    asyncio.run(main())
    found = parents(capture.finish())
    assert found["outer"] == found["after outer"] == "generator"
    assert found["inner"] == found.get("after inner", "outer") == "outer"
    assert found["consumer"] == "after outer"  # which is open in its task


def test_an_async_generator_takes_what_is_sent_and_thrown(capture: Capture, record_function: type[Any]) -> None:
    @record_function("echo")
    async def echo() -> AsyncGenerator[object, object]:
        received: object = None
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error

    async def main() -> None:
        generator, error = echo(), KeyError("k")
        assert await generator.__anext__() is None
        assert await generator.asend("a") == "a"
        assert await generator.athrow(error) is error
        await generator.aclose()

    asyncio.run(main())
    [row] = capture.finish()
    assert (row.flags, row.error) == (ASYNC, "")
