"""Tasks that take turns in one thread, each in a span of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn.support.span_ids import span_id

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


def test_tasks_of_one_thread_in_spans_of_their_own(instrument: Callable[..., Any]) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("program")
    sizes = {"first": 3, "second": 4}

    async def request(name: str, mine: asyncio.Event, others: asyncio.Event) -> None:
        with tracer.start_as_current_span(name):
            for _ in range(10):  # each waits for the other before its next step: they alternate
                await mine.wait()
                mine.clear()
                torch.relu(torch.ones(sizes[name]))
                others.set()

    async def serve() -> None:
        turns = asyncio.Event(), asyncio.Event()
        turns[0].set()
        await asyncio.gather(request("first", *turns), request("second", *reversed(turns)))

    ours = instrument(tracer_provider=provider, record_shapes=True, span_budget=None)
    asyncio.run(serve())
    events = ours.finish()
    provider.force_flush()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    requests = {span.name: span for span in spans.values() if span.name in sizes}
    for name, size in sizes.items():
        relus = [event for event in events if event.name == "aten::relu" and event.shapes == f"[[{size}]]"]
        assert len(relus) == 10
        for event in relus:
            assert spans[span_id(event.event_id)].parent.span_id == requests[name].context.span_id
            assert event.context.span_id == requests[name].context.span_id
    provider.shutdown()
