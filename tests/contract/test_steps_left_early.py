"""Steps in streams that are left early, in whatever task, thread or context: the ended step is
nobody's current span.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from helpers.step_program import Program
from helpers.timeouts import PATIENCE_S


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING):
        yield
    assert caplog.records == [], "OpenTelemetry logs contexts that can't be detached"


def stream(program: Program, name: str = "decode") -> Iterator[int]:
    with program.step(name, 1), program.record_function("token"):
        yield 1
    yield 2


def stream_with_a_step_around(program: Program) -> Iterator[int]:
    with program.step("decode", 1):
        with program.record_function("token"):
            pass
        yield 1


async def async_stream(program: Program, name: str = "decode") -> AsyncIterator[int]:
    async with program.step(name, 1):
        async with program.record_function("token"):
            pass
        yield 1


def go_on(program: Program) -> None:
    """What a request does after it has left the stream."""
    with (
        program.record_function("after"),
        program.tracer.start_as_current_span("query"),
        program.record_function("mm"),
    ):
        pass


IN_THE_REQUEST = ["request", "request/after", "request/after/query", "request/after/query/mm"]
WITH_THE_STEP = sorted([*IN_THE_REQUEST, "request/decode:1", "request/decode:1/token"])


def in_another_context(generator: Any) -> None:
    contextvars.copy_context().run(generator.close)


def in_another_thread(generator: Any) -> None:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(generator.close,))
    thread.start()
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("make", [stream, stream_with_a_step_around])
@pytest.mark.parametrize("leave", [in_another_context, in_another_thread, Generator.close])
def test_a_generator_that_is_closed(
    program: Program, make: Any, leave: Callable[[Any], None]
) -> None:
    with program.tracer.start_as_current_span("request") as request:
        generator = make(program)
        next(generator)
        leave(generator)
        assert trace.get_current_span() is request
        if leave is in_another_thread:  # this one is told by the next drain
            assert program.session.flush(program.capture, PATIENCE_S)
        go_on(program)
    assert program.paths() == WITH_THE_STEP


@pytest.mark.parametrize("closed_by", ["another task", "the event loop"])
def test_an_async_generator_that_is_left(program: Program, closed_by: str) -> None:
    async def main() -> None:
        with program.tracer.start_as_current_span("request") as request:
            generator = async_stream(program)
            await generator.__anext__()
            if closed_by == "another task":
                await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
            else:
                del generator
                gc.collect()
                await asyncio.sleep(0)  # then there is a task for it
                others = asyncio.all_tasks() - {asyncio.current_task()}
                assert others
                await asyncio.gather(*others)
            assert trace.get_current_span() is request
            go_on(program)

    asyncio.run(main())
    assert program.paths() == WITH_THE_STEP


def test_until_it_is_closed_a_suspended_step_is_current(program: Program) -> None:
    """As a range of ``record_function`` is."""
    with program.tracer.start_as_current_span("request"):
        generator = stream_with_a_step_around(program)
        next(generator)
        with program.tracer.start_as_current_span("query"):
            pass
        in_another_context(generator)
    assert "request/decode:1/query" in program.paths()


def test_closed_within_a_span_that_was_opened_since(program: Program) -> None:
    with program.tracer.start_as_current_span("request") as request:
        generator = stream_with_a_step_around(program)
        next(generator)
        with program.tracer.start_as_current_span("query") as query:
            generator.close()
            assert trace.get_current_span() is query
            with program.record_function("mm"):
                pass
        assert trace.get_current_span() is request
        go_on(program)
    paths = program.paths()
    assert {"request/decode:1/query", "request/decode:1/query/mm", *IN_THE_REQUEST} < set(paths)


def test_streams_that_are_closed_in_the_order_in_which_they_began(program: Program) -> None:
    with program.tracer.start_as_current_span("request") as request:
        first = stream(program, "first")
        second = stream(program, "second")
        next(first), next(second)
        first.close()
        assert (
            trace.get_current_span().get_span_context().span_id
            != request.get_span_context().span_id
        )
        with program.record_function("in second"):
            pass
        second.close()
        assert trace.get_current_span() is request
        go_on(program)
    paths = program.paths()
    assert [
        path.rpartition("/")[0].rpartition("/")[2] for path in paths if path.endswith("in second")
    ] == ["token"]
    assert set(IN_THE_REQUEST) < set(paths)


def test_what_goes_on_after_the_step_that_it_was_started_in(program: Program) -> None:
    async def late(ended: asyncio.Event) -> None:
        await ended.wait()
        with program.record_function("late"):
            pass

    async def main() -> None:
        ended = asyncio.Event()
        with program.tracer.start_as_current_span("request"):
            async with program.step("decode", 1):
                task = asyncio.create_task(late(ended))
                await asyncio.sleep(0)
            ended.set()
            await task

    asyncio.run(main())
    assert program.paths() == ["request", "request/decode:1", "request/late"]


def test_what_the_program_attaches_in_a_step_is_current(program: Program) -> None:
    with program.tracer.start_as_current_span("request") as request:
        with program.step("decode", 1):
            token = otel_context.attach(baggage.set_baggage("tenant", "a"))
            assert baggage.get_baggage("tenant") == "a"
            with program.record_function("mm"), program.tracer.start_as_current_span("query"):
                pass
            otel_context.detach(token)
            assert baggage.get_baggage("tenant") is None
            with trace.use_span(request), program.record_function("beside"):
                pass
        assert trace.get_current_span() is request
    assert {"request/decode:1/mm/query", "request/beside"} <= set(program.paths())


def test_a_step_that_is_not_sampled_is_current_too(make_program: Callable[..., Program]) -> None:
    program = make_program(sampler=ParentBased(ALWAYS_OFF))
    generator = stream_with_a_step_around(program)
    next(generator)
    with program.tracer.start_as_current_span("query") as query:
        query_span = query.get_span_context()
    step_span = trace.get_current_span().get_span_context()
    assert step_span.is_valid
    assert (query_span.trace_id, query_span.trace_flags.sampled) == (step_span.trace_id, False)
    in_another_context(generator)
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert program.paths() == []
