"""What a program does with OpenTelemetry's API inside ranges: the range is its current span, and
nothing else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from opentelemetry import baggage, context, propagate, trace

from helpers.exported_traces import Traces
from otel_recfn import record_function


def current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()


def test_a_decorated_generator_with_a_span_open_over_a_yield(traces: Traces) -> None:
    @record_function("generator")
    def items() -> Iterator[int]:
        with traces.tracer.start_as_current_span("span"):
            yield 1
        with record_function("after the span"):
            yield 2

    with traces.tracer.start_as_current_span("request"):
        assert list(items()) == [1, 2]
    paths = traces.paths()
    assert paths["request/generator/span"] == paths["request/generator/after the span"] == 1


def test_use_span_and_the_shown_span_itself(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request"), record_function("range"):
        shown = trace.get_current_span()
        with (
            trace.use_span(traces.tracer.start_span("manual"), end_on_exit=True),
            record_function("in manual"),
        ):
            pass
        with (
            trace.use_span(shown),
            record_function("in shown"),
            traces.tracer.start_as_current_span("deep"),
        ):
            pass
    paths = traces.paths()
    assert paths["request/range/manual/in manual"] == paths["request/range/in shown/deep"] == 1


def test_injected_headers_name_the_range_and_keep_baggage(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request"), record_function("range"):
        token = context.attach(baggage.set_baggage("key", "value"))
        headers: dict[str, str] = {}
        propagate.inject(headers)
        assert baggage.get_baggage("key") == "value"
        assert headers["traceparent"].split("-")[2] == format(current().span_id, "016x")
        context.detach(token)
        token = context.attach(propagate.extract(headers))
        with record_function("below what was extracted"):
            pass
        context.detach(token)
    assert traces.paths()["request/range/below what was extracted"] == 1


async def in_anyio(work: Callable[[], Awaitable[None]]) -> None:
    anyio = pytest.importorskip("anyio")
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(work)


async def in_asyncio(work: Callable[[], Awaitable[None]]) -> None:
    if not hasattr(asyncio, "TaskGroup"):
        pytest.skip("asyncio has no TaskGroup here")
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(work())


@pytest.mark.parametrize("in_tasks", [in_asyncio, in_anyio])
def test_tasks_of_a_group_lie_in_the_range_that_made_them(
    traces: Traces, in_tasks: Callable[..., Awaitable[None]]
) -> None:
    async def work() -> None:
        with traces.tracer.start_as_current_span("task"):
            await asyncio.sleep(0)
            async with record_function("in task"):
                await asyncio.sleep(0)

    async def main() -> None:
        with traces.tracer.start_as_current_span("request"):
            async with record_function("range"):
                await in_tasks(work)

    asyncio.run(main())
    assert traces.paths()["request/range/task/in task"] == 5
