"""``async with record_function``, decorated coroutines and asynchronous generators: ranges that
belong to tasks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry import context as otel_context

import otel_recfn
from helpers.recording_helpers import ASYNC, ERROR, Capture, by_name, check_laws, parents
from otel_recfn import _native  # what sources/range_spans.py asks
from otel_recfn.model.events import EventFlag
from otel_recfn.recording.recorder import Recorder

ELSEWHERE = EventFlag.PARENT_ELSEWHERE


def test_an_async_with_is_an_async_range(capture: Capture, record_function: type[Any]) -> None:
    async def main() -> None:
        async with record_function("outer") as outer:
            assert isinstance(outer, record_function)
            async with record_function("inner"):
                with record_function("leaf"):
                    pass

    asyncio.run(main())
    rows = capture.finish()
    assert parents(rows) == {"leaf": "inner", "inner": "outer", "outer": ""}
    assert [row.flags for row in rows] == [ELSEWHERE, ASYNC | ELSEWHERE, ASYNC]
    assert len({row.root for row in rows}) == 1
    check_laws(rows, capture.opened())


def test_one_object_in_many_tasks(capture: Capture, record_function: type[Any]) -> None:
    shared = record_function("shared")

    async def work(index: int, everyone: list[int]) -> None:
        async with shared:
            everyone.append(index)
            while len(everyone) < 4:
                await asyncio.sleep(0)
            for _ in range(index):  # leave in another order than entered
                await asyncio.sleep(0)
            with record_function(f"in {index}"):
                pass
            if index == 2:
                raise ValueError("two")

    async def main() -> None:
        everyone: list[int] = []
        await asyncio.gather(*(work(index, everyone) for index in range(4)), return_exceptions=True)

    asyncio.run(main())
    rows = capture.finish()
    ranges = {row.event_id: row for row in rows if row.name == "shared"}
    inside = {row.name: row.parent for row in rows if row.name != "shared"}
    assert set(inside.values()) == set(ranges)
    assert [event_id for event_id, row in ranges.items() if row.flags & ERROR] == [inside["in 2"]]


def test_a_child_task_and_a_thread_inherit_the_range(
    capture: Capture, record_function: type[Any]
) -> None:
    def in_thread() -> None:
        with record_function("thread"):
            pass

    async def child() -> None:
        with record_function("child"):
            pass

    async def main() -> None:
        async with record_function("outer"):
            await asyncio.create_task(child())
            await asyncio.to_thread(in_thread)

    asyncio.run(main())
    rows = capture.finish()
    assert parents(rows) == {"outer": "", "child": "outer", "thread": "outer"}
    assert len({row.thread.number for row in rows}) == 2


def test_one_object_may_be_entered_while_it_is_open(
    capture: Capture, record_function: type[Any]
) -> None:
    async def main() -> None:
        range_ = record_function("again")
        async with range_, range_:
            pass

    asyncio.run(main())
    inner, outer = capture.finish()
    assert (inner.parent, outer.parent) == (outer.event_id, 0)


def test_entered_in_one_task_and_left_in_another(
    capture: Capture, record_function: type[Any], caplog: Any
) -> None:
    """As fixtures and async generators do: the context it was attached to is out of reach."""

    async def main() -> None:
        range_ = record_function("moving")
        await asyncio.create_task(range_.__aenter__())
        await asyncio.create_task(range_.__aexit__(None, None, None))
        assert _native.ranges_after(None) == ()

    asyncio.run(main())
    [row] = capture.finish()
    assert (row.name, row.flags) == ("moving", ASYNC)
    assert not caplog.records


def test_nothing_happens_without_a_capture(recorder: Recorder) -> None:
    before = recorder.counters()

    @otel_recfn.record_function("coroutine")
    async def coroutine() -> int:
        return 3

    @otel_recfn.record_function("generator")
    async def generator() -> AsyncGenerator[int, None]:
        yield 1

    async def main() -> None:
        context = otel_context.get_current()
        async with otel_recfn.record_function("range"):
            assert otel_context.get_current() is context
            assert await coroutine() == 3
            assert [item async for item in generator()] == [1]

    asyncio.run(main())
    assert len(recorder.drain(close_open=True)) == 0
    assert recorder.counters() == before


def test_a_capture_that_begins_and_ends_inside_async_ranges(recorder: Recorder) -> None:
    record_function = otel_recfn.record_function
    captures = []

    async def main() -> None:
        async with record_function("before"):
            captures.append(Capture(recorder))
            async with record_function("inside"):
                pass
        async with record_function("open"):
            captures[0].finish()
            with record_function("after"):
                pass

    asyncio.run(main())
    assert parents(captures[0].rows()) == {"inside": "", "open": ""}


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
        assert (
            await (items.__anext__() if ends == "is resumed" else items.athrow(KeyError("k"))) == 2
        )
        with record_function("consumer"):
            pass
        assert [item async for item in items] == []

    asyncio.run(main())
    found = parents(capture.finish())
    assert found["outer"] == found["after outer"] == "generator"
    assert found["inner"] == found.get("after inner", "outer") == "outer"
    assert found["consumer"] == "after outer"  # which is open in its task


def test_an_async_generator_takes_what_is_sent_and_thrown(
    capture: Capture, record_function: type[Any]
) -> None:
    @record_function("echo")
    async def echo() -> AsyncGenerator[object, object]:
        received: object = None
        while True:
            try:
                received = yield received
            except KeyError as error:
                received = error

    async def main() -> None:
        generator = echo()
        error = KeyError("k")
        assert await generator.__anext__() is None
        assert await generator.asend("a") == "a"
        assert await generator.athrow(error) is error
        await generator.aclose()

    asyncio.run(main())
    [row] = capture.finish()
    assert (row.flags, row.error) == (ASYNC, "")
