"""The program opens spans inside ranges, and sees ranges as its current span; operators lie in
their task or greenlet.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from helpers.exported_traces import Traces
from helpers.timeouts import PATIENCE_S
from otel_recfn import profile, record_function

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
RANGES = [record_function, torch.profiler.record_function]


@pytest.mark.parametrize("range_", RANGES)
def test_a_span_inside_a_range_is_its_child_and_has_what_runs_in_it(
    traces: Traces, range_: Any
) -> None:
    with traces.tracer.start_as_current_span("outer"), range_("range"):
        torch.add(traces.x, traces.x)
        with traces.tracer.start_as_current_span("inner"):
            torch.mul(traces.x, traces.x)
        torch.sub(traces.x, traces.x)
    paths = traces.paths()
    assert paths["outer/range/aten::add"] == paths["outer/range/aten::sub"] == 1
    # PyTorch's ranges are not shown as current spans.
    enclosing = "outer/range" if range_ is record_function else "outer"
    assert paths[f"{enclosing}/inner/aten::mul"] == 1


def test_a_span_inside_a_forward_is_the_module_calls_child(traces: Traces) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            with traces.tracer.start_as_current_span("in forward"):
                return torch.mul(x, x)

    with traces.tracer.start_as_current_span("outer"):
        Model()(traces.x)
    assert traces.paths()["outer/Model/in forward/aten::mul"] == 1


class CallsBack(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """A range of PyTorch's, in which Python runs."""

    @staticmethod
    def forward(ctx: Any, x: Any, traces: Traces) -> Any:
        with record_function("inner"), traces.tracer.start_as_current_span("span"):
            return x.clone()


class OpensAnotherTrace(CallsBack):
    @staticmethod
    def forward(ctx: Any, x: Any, traces: Traces) -> Any:
        with traces.tracer.start_as_current_span("of another trace", otel_context.Context()):
            torch.mul(x, x)
        return CallsBack.forward(ctx, x, traces)


@pytest.mark.parametrize("enclosing", ["MainThread", "request"])
def test_a_span_inside_an_operator_in_which_another_trace_was_current_is_in_the_operators(
    traces: Traces, enclosing: str
) -> None:
    request = traces.tracer.start_as_current_span("request")
    with request if enclosing == "request" else nullcontext():
        OpensAnotherTrace.apply(traces.x.clone().requires_grad_(), traces)
    traces.instrumentor.uninstrument()
    assert traces.paths()[f"{enclosing}/OpensAnotherTrace/inner/span/aten::clone"] == 1


class OpensASpan(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Opens one in its forward and one in its backward, which runs in a range of PyTorch's."""

    @staticmethod
    def forward(ctx: Any, x: Any, traces: Traces) -> Any:
        ctx.traces = traces
        with traces.tracer.start_as_current_span("span"):
            return torch.mul(x, x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        with ctx.traces.tracer.start_as_current_span("span"):
            return torch.neg(gradient), None


@pytest.mark.parametrize("range_", RANGES)
def test_in_a_profile_the_parent_of_a_range_in_a_span_is_the_enclosing_range(
    traces: Traces, range_: Any
) -> None:
    with profile() as prof:
        with range_("range"), traces.tracer.start_as_current_span("span"):
            torch.add(traces.x, traces.x)
        OpensASpan.apply(traces.x.clone().requires_grad_(), traces).sum().backward()
    by_id = {event.event_id: event for event in prof.events()}
    enclosing = {
        event.name: by_id[event.parent].name for event in by_id.values() if event.parent in by_id
    }
    assert (enclosing["aten::add"], enclosing["aten::mul"], enclosing["aten::neg"]) == (
        "range",
        "OpensASpan",
        "OpensASpanBackward",
    )


def test_what_is_done_to_the_current_span_is_done_to_the_programs_own(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request") as request, record_function("range"):
        current = trace.get_current_span()
        assert current.is_recording()
        assert isinstance(current, type(request))
        assert current == request
        assert current.get_span_context().trace_id == request.get_span_context().trace_id
        current.set_attribute("tokens", 7)
        current.add_event("seen")
    [span] = [span for span in traces.spans() if span.name == "request"]
    assert span.attributes == {"tokens": 7}
    assert [event.name for event in span.events] == ["seen"]


def test_what_is_current_can_be_copied_and_pickled_where_the_programs_own_can(
    traces: Traces,
) -> None:
    remote = trace.NonRecordingSpan(
        trace.SpanContext(1, 2, True, trace.TraceFlags(trace.TraceFlags.SAMPLED))
    )
    with trace.use_span(remote), record_function("range"):
        current = trace.get_current_span()
        for made in (
            copy.copy(current),
            copy.deepcopy(current),
            pickle.loads(pickle.dumps(current)),
        ):
            assert (
                made.get_span_context() == current.get_span_context() != remote.get_span_context()
            )
    with traces.tracer.start_as_current_span("own") as own, record_function("range"):
        assert copy.copy(trace.get_current_span()) is not own
        with pytest.raises(TypeError):
            pickle.dumps(trace.get_current_span())


def test_a_span_inside_a_range_that_has_no_span_around_it_is_in_the_ranges_trace(
    traces: Traces,
) -> None:
    with record_function("first"):
        torch.add(traces.x, traces.x)
        with record_function("second"), traces.tracer.start_as_current_span("inner"):
            torch.mul(traces.x, traces.x)
    with record_function("later"):
        assert traces.instrumentor.flush(PATIENCE_S)  # the sink decides on this one
        with traces.tracer.start_as_current_span("inner"):
            torch.sub(traces.x, traces.x)
    torch.neg(traces.x)
    traces.instrumentor.uninstrument()
    paths = traces.paths()
    assert (
        paths["MainThread/first/second/inner/aten::mul"] == paths["MainThread/first/aten::add"] == 1
    )
    assert paths["MainThread/later/inner/aten::sub"] == 1


def test_below_a_span_that_is_not_sampled_nothing_is_shown() -> None:
    traces = Traces(sampler=ALWAYS_OFF)
    with traces.tracer.start_as_current_span("outer") as outer, record_function("range"):
        current = trace.get_current_span()
    traces.instrumentor.uninstrument()
    assert current is outer
    assert traces.exporter.get_finished_spans() == ()


def test_ranges_that_become_no_spans_are_not_shown(traces: Traces) -> None:
    """A range that began before the instrumentation, or that only a profile records."""
    traces.instrumentor.uninstrument()
    with (
        traces.tracer.start_as_current_span("outer") as outer,
        profile(),
        record_function("earlier"),
    ):
        assert trace.get_current_span() is outer
        traces.instrumentor.instrument(tracer_provider=traces.provider)
        assert trace.get_current_span() is outer
        with record_function("later"):
            assert trace.get_current_span() is not outer
        traces.instrumentor.uninstrument()
        with record_function("too late"):
            assert trace.get_current_span() is outer
    traces.instrumentor.instrument(tracer_provider=traces.provider)


def test_python_calls_that_another_capture_records_are_around_nothing(traces: Traces) -> None:
    def call() -> None:
        with record_function("range"), traces.tracer.start_as_current_span("span"):
            torch.mul(traces.x, traces.x)
        CallsBack.apply(traces.x.clone().requires_grad_(), traces)

    with profile(python_calls=True):
        call()
    traces.instrumentor.uninstrument()
    paths = traces.paths()
    assert (
        paths["MainThread/range/span/aten::mul"]
        == paths["MainThread/CallsBack/inner/span/aten::clone"]
        == 1
    )


class Calls(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """An operator that calls the program."""

    @staticmethod
    def forward(ctx: Any, x: Any, work: Callable[[], None]) -> Any:
        work()
        return x.clone()


def inside(traces: Traces, enclosing: list[str], work: Callable[[], None]) -> None:
    """Do the work in what is named, the outermost first."""
    if not enclosing:
        work()
    elif enclosing[0] == "operator":
        Calls.apply(traces.x, lambda: inside(traces, enclosing[1:], work))
    else:
        with (
            traces.tracer.start_as_current_span("span")
            if enclosing[0] == "span"
            else record_function("range")
        ):
            inside(traces, enclosing[1:], work)


def in_place(work: Callable[[], object]) -> None:
    work()


def elsewhere(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", [in_place, elsewhere])
@pytest.mark.parametrize("end", ["inside", "after"])
@pytest.mark.parametrize(
    "enclosing", ["", "span", "range", "operator", "span range", "operator span", "span operator"]
)
@pytest.mark.parametrize("outer", ["", "span ", "span range "])
def test_calls_that_another_capture_traces_lend_nothing(
    where: Callable[[Callable[[], object]], None], outer: str, enclosing: str, end: str
) -> None:
    def later(traces: Traces) -> None:
        for _ in range(2):
            with traces.tracer.start_as_current_span("later"), record_function("in later"):
                torch.add(traces.x, traces.x)
            torch.sub(traces.x, traces.x)

    def paths_with(other: profile) -> Counter[str]:
        traces = Traces()

        def starts() -> None:
            where(other.__enter__)
            torch.mul(traces.x, traces.x)
            with traces.tracer.start_as_current_span("in it"):
                torch.mul(traces.x, traces.x)
            if end == "inside":
                where(lambda: other.__exit__(None, None, None))

        def program() -> None:
            inside(traces, enclosing.split(), starts)
            later(traces)
            if end == "after":
                where(lambda: other.__exit__(None, None, None))
            later(traces)

        inside(traces, outer.split(), program)
        paths = traces.all_paths()
        del paths["MainThread"]  # the drains decide how many traces there are of what is in none
        return paths

    assert paths_with(profile(with_stack=True)) == paths_with(profile())


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


def test_operators_of_a_thread_that_outlives_the_range_around_it_are_in_the_span_around_that(
    traces: Traces,
) -> None:
    has_begun = threading.Event()
    may_end = threading.Event()

    def work() -> None:
        torch.cos(traces.x)
        has_begun.set()
        may_end.wait(PATIENCE_S)
        torch.sin(traces.x)
        with traces.tracer.start_as_current_span("inner"):
            torch.neg(traces.x)

    async def request() -> None:
        with traces.tracer.start_as_current_span("request"):
            with record_function("range"):
                working = asyncio.create_task(asyncio.to_thread(work))
                while not has_begun.is_set():
                    await asyncio.sleep(0)
            may_end.set()
            await working

    asyncio.run(request())
    paths = traces.paths()
    assert paths["request/range/aten::cos"] == 1
    assert paths["request/aten::sin"] == paths["request/inner/aten::neg"] == 1


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
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://service"
        ) as client:

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
    number_of = {
        span.context.trace_id: span.attributes["number"]
        for span in spans
        if "number" in (span.attributes or {})
    }
    assert len(number_of) == REQUESTS
    named = [
        span
        for span in spans
        if span.name.split()[0] in ("handler", "thread", "background", "stream")
    ]
    assert len(named) == 4 * REQUESTS
    assert all(span.name.endswith(f" {number_of[span.context.trace_id]}") for span in named)
    operators = Counter(
        (number_of[span.context.trace_id], span.name)
        for span in spans
        if span.name.startswith("aten::")
    )
    for number in range(REQUESTS):
        found = {name: operators[number, f"aten::{name}"] for name in ("add", "mul", "sub")}
        assert found == {"add": 3, "mul": 2, "sub": 1}
