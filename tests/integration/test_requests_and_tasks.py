"""Operators lie in the request, task or greenlet that ran them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from exported_traces import RANGES, Traces
from opentelemetry import trace

from otel_recfn import record_function

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]
TASKS = 40
REQUESTS = 200


@pytest.mark.parametrize("range_", RANGES)
def test_forty_tasks_that_wait_inside_ranges(traces: Traces, range_: Any) -> None:
    async def work(name: str) -> None:
        with range_(name):
            await asyncio.sleep(0)
            torch.add(traces.x, traces.x)
            await asyncio.sleep(0)
            torch.mul(traces.x, traces.x)

    async def main() -> None:
        with traces.tracer.start_as_current_span("all"):
            await asyncio.gather(*(work(f"task {number}") for number in range(TASKS)))

    asyncio.run(main())
    paths = traces.paths()
    for number in range(TASKS):
        assert paths[f"all/task {number}/aten::add"] == paths[f"all/task {number}/aten::mul"] == 1


def test_a_greenlet_without_any_context_is_a_task_of_its_own(traces: Traces) -> None:
    greenlet = pytest.importorskip("greenlet")

    def work() -> None:
        with torch.profiler.record_function("suspended"):
            made.parent.switch()

    with traces.tracer.start_as_current_span("main"):
        torch.add(traces.x, traces.x)
        made = greenlet.greenlet(work)
        made.switch()
        torch.mul(traces.x, traces.x)
        made.switch()
    traces.instrumentor.uninstrument()
    paths = traces.paths()
    assert paths["main/aten::mul"] == 1
    assert paths["MainThread/suspended"] == 1  # nothing is current in that greenlet


def test_work_that_a_range_hands_to_threads_and_tasks_lies_in_it(traces: Traces) -> None:
    async def child() -> None:
        torch.mul(traces.x, traces.x)

    async def main() -> None:
        with traces.tracer.start_as_current_span("request"), record_function("predict"):
            await asyncio.to_thread(torch.add, traces.x, traces.x)
            await asyncio.create_task(child())

    asyncio.run(main())
    paths = traces.paths()
    assert paths["request/predict/aten::add"] == paths["request/predict/aten::mul"] == 1


# --- a service


def _service(traces: Traces) -> Any:
    fastapi = pytest.importorskip("fastapi")
    responses = pytest.importorskip("fastapi.responses")
    app = fastapi.FastAPI()

    def stream(number: int) -> Iterator[bytes]:
        with record_function(f"stream {number}"):
            for _ in range(3):
                torch.add(traces.x, traces.x)
                yield b"."

    def work(name: str) -> None:
        with record_function(name):
            torch.mul(traces.x, traces.x)

    @app.get("/{number}")
    async def handle(number: int) -> Any:
        trace.get_current_span().set_attribute("number", number)
        with record_function(f"handler {number}"):
            await asyncio.sleep(0)
            torch.sub(traces.x, traces.x)
            await asyncio.to_thread(work, f"thread {number}")
        later = fastapi.BackgroundTasks()
        later.add_task(work, f"background {number}")
        return responses.StreamingResponse(stream(number), background=later)

    return app


def _get(app: Any, numbers: range, at_once: int) -> None:
    httpx = pytest.importorskip("httpx")

    async def main() -> None:
        turns = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:

            async def get(number: int) -> None:
                async with turns:
                    assert (await client.get(f"/{number}")).text == "..."

            await asyncio.gather(*(get(number) for number in numbers))

    asyncio.run(main())


def test_a_fastapi_service_under_load(traces: Traces) -> None:
    fastapi_instrumentation = pytest.importorskip("opentelemetry.instrumentation.fastapi")
    app = _service(traces)
    fastapi_instrumentation.FastAPIInstrumentor.instrument_app(app, tracer_provider=traces.provider)
    _get(app, range(REQUESTS), at_once=30)
    spans = traces.spans()
    number_of = {span.context.trace_id: span.attributes["number"] for span in spans if "number" in (span.attributes or {})}
    assert len(number_of) == REQUESTS
    named = [span for span in spans if span.name.split()[0] in ("handler", "thread", "background", "stream")]
    assert len(named) == 4 * REQUESTS
    assert all(span.name.endswith(f" {number_of[span.context.trace_id]}") for span in named)
    operators = Counter((number_of[span.context.trace_id], span.name) for span in spans if span.name.startswith("aten::"))
    for number in range(REQUESTS):
        found = {name: operators[number, f"aten::{name}"] for name in ("add", "mul", "sub")}
        assert found == {"add": 3, "mul": 2, "sub": 1}
