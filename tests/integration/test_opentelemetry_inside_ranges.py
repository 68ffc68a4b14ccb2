"""What a program does with OpenTelemetry's API inside ranges: the range is its current span, and nothing else changes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from patience import PATIENCE_S


class Program:
    """A provider, its tracer, and the spans that were exported."""

    def __init__(self, instrumentor: OtelRecordFunctionInstrumentor) -> None:
        self._instrumentor, self._exporter = instrumentor, InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("program")
        instrumentor.instrument(tracer_provider=self.provider, span_budget=None)

    def paths(self) -> Counter[str]:
        """How often there is a span of those names below each other."""
        assert self._instrumentor.flush(PATIENCE_S)
        spans = {span.context.span_id: span for span in self._exporter.get_finished_spans()}

        def names(span: ReadableSpan | None) -> Iterator[str]:
            while span is not None:
                yield span.name
                span = spans[span.parent.span_id] if span.parent is not None else None

        return Counter("/".join(reversed(list(names(span)))) for span in spans.values())


@pytest.fixture
def program(instrumentor: OtelRecordFunctionInstrumentor) -> Program:
    return Program(instrumentor)


def current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()


def test_a_decorated_generator_with_a_span_open_over_a_yield(program: Program) -> None:
    @record_function("generator")
    def items() -> Iterator[int]:
        with program.tracer.start_as_current_span("span"):
            yield 1
        with record_function("after the span"):
            yield 2

    with program.tracer.start_as_current_span("request"):
        assert list(items()) == [1, 2]
    paths = program.paths()
    assert paths["request/generator/span"] == paths["request/generator/after the span"] == 1


def test_use_span_and_the_shown_span_itself(program: Program) -> None:
    with program.tracer.start_as_current_span("request"), record_function("range"):
        shown = trace.get_current_span()
        with trace.use_span(program.tracer.start_span("manual"), end_on_exit=True), record_function("in manual"):
            pass
        with trace.use_span(shown), record_function("in shown"), program.tracer.start_as_current_span("deep"):
            pass
    paths = program.paths()
    assert paths["request/range/manual/in manual"] == paths["request/range/in shown/deep"] == 1


def test_injected_headers_name_the_range_and_keep_baggage(program: Program) -> None:
    with program.tracer.start_as_current_span("request"), record_function("range"):
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
    assert program.paths()["request/range/below what was extracted"] == 1


def test_a_copied_context_in_another_thread_also_when_its_range_is_over(program: Program) -> None:
    def work() -> None:
        with record_function("work"), program.tracer.start_as_current_span("span of work"):
            pass

    def in_thread(copied: contextvars.Context) -> None:
        thread = threading.Thread(target=copied.run, args=(work,))
        thread.start()
        thread.join(PATIENCE_S)

    with program.tracer.start_as_current_span("request"):
        with record_function("range"):
            copied = contextvars.copy_context()
            in_thread(copied)
        in_thread(copied)
    paths = program.paths()
    assert paths["request/range/work/span of work"] == paths["request/work/span of work"] == 1


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
def test_tasks_of_a_group_lie_in_the_range_that_made_them(program: Program, in_tasks: Callable[..., Awaitable[None]]) -> None:
    async def work() -> None:
        with program.tracer.start_as_current_span("task"):
            await asyncio.sleep(0)
            async with record_function("in task"):
                await asyncio.sleep(0)

    async def main() -> None:
        with program.tracer.start_as_current_span("request"):
            async with record_function("range"):
                await in_tasks(work)

    asyncio.run(main())
    assert program.paths()["request/range/task/in task"] == 5
