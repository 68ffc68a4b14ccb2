"""``step``, and a span that is not sampled, around PyTorch's work."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from helpers.cpu_work import work
from helpers.exported_traces import Traces
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import read_trace
from otel_recfn import profile, record_function, step
from otel_recfn.model.events import EventSource

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def test_profiles_and_local_files_have_its_number(tmp_path: Any) -> None:
    with profile() as prof:
        for number in range(2):
            with step("train", number), step(number=number):
                torch.ones(2) + 1
    steps = [(event.name, event.step_number) for event in prof.events() if event.step_number != -1]
    assert steps == [("train", 0), ("step", 0), ("train", 1), ("step", 1)]
    assert "train" in str(prof.tree())
    prof.export_chrome_trace(tmp_path / "trace.json")
    names = [event["name"] for event in read_trace(tmp_path / "trace.json")["traceEvents"]]
    assert {"train#0", "train#1", "ProfilerStep#0", "ProfilerStep#1"} <= set(names)


def test_steps_modules_and_optimizers_say_what_their_thread_worked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    traces = Traces(budgets={"span_budget": None})
    with step("train", 0):
        wait_for_a_thread_that_works()  # as for a batch of data
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    spans = {span.name: span for span in traces.spans()}
    traces.instrumentor.uninstrument()
    attributes_by_name = {name: dict(span.attributes or {}) for name, span in spans.items()}
    with_cpu_time = {
        name for name, attributes in attributes_by_name.items() if "recfn.cpu_time_ns" in attributes
    }
    assert with_cpu_time == {"train", "Sequential", "Linear", "ReLU", "Optimizer.step#SGD.step"}
    assert (
        attributes_by_name["Sequential"]["recfn.cpu_time_ns"]
        > attributes_by_name["Linear"]["recfn.cpu_time_ns"]
        > 0
    )
    duration_ns = spans["train"].end_time - spans["train"].start_time
    assert duration_ns > 2 * attributes_by_name["train"]["recfn.cpu_time_ns"]


class Slow(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> Any:
        wait_for_a_thread_that_works()
        return torch.ones(2)


@pytest.mark.parametrize(
    ("with_stack", "awaiting"), [(False, [True, False]), (True, [False, True])]
)
def test_so_do_outermost_ranges(
    monkeypatch: pytest.MonkeyPatch, with_stack: bool, awaiting: list[bool]
) -> None:
    # Other tests may have left greenlets.
    monkeypatch.delitem(sys.modules, "greenlet._greenlet", raising=False)

    def in_task(awaits: bool) -> Coroutine[Any, Any, None]:
        async def run() -> None:
            with torch.profiler.record_function(f"awaits: {awaits}"):
                await asyncio.sleep(0) if awaits else None

        return run()

    async def both() -> None:
        await asyncio.gather(*map(in_task, awaiting))

    with profile(with_stack=with_stack) as prof:  # Python calls are around them all, then
        list(torch.utils.data.DataLoader(Slow()))
        with record_function("ours"), record_function("inside ours"):
            pass
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            contextvars.copy_context().run(torch.ones(2).add, 1)
        with step("train"), torch.profiler.record_function("in a step"):
            pass
        asyncio.run(both())
    rows = {event.name: event for event in reversed(prof.events())}  # of each name the first
    loader = next(row for name, row in rows.items() if name.startswith("enumerate(DataLoader)"))
    assert 0 <= loader.cpu_time_ns < loader.duration_ns / 2
    with_cpu_time = {
        name for name, row in rows.items() if row.cpu_time_ns >= 0 and row is not loader
    }
    assert with_cpu_time == {"ours", "outer", "train", "in a step", "awaits: False"}


def wait_for_a_thread_that_works() -> None:
    """For longer than the training step here can take."""
    thread = threading.Thread(target=work, args=[300_000_000])
    thread.start()
    thread.join(PATIENCE_S)


made_outside = step("outside", 4)


@step("decorated")
def decorated(x: Any) -> Any:
    return x + 1


def marked(x: Any, number: int) -> Any:
    with step("train", number):
        x = x * 2
    with made_outside:
        x = x + 1
    with step():
        return decorated(x)


def test_compiled_code_has_one_graph_whatever_the_number_is() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    torch._dynamo.reset()
    compiled = torch.compile(marked, backend=backend, fullgraph=True)
    for number in range(4):
        assert compiled(torch.ones(2), number).tolist() == [4.0, 4.0]
    assert len(graphs) == 1


class ByName(Sampler):
    """Samples what is called so, whatever lies around."""

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *_others: Any, **_named: Any
    ) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE if name == "sampled" else Decision.DROP)

    def get_description(self) -> str:
        return "by name"


@pytest.fixture
def by_name() -> Iterator[Traces]:
    """A program of which the spans are sampled that are called so."""
    made = Traces(ByName(), record_shapes=True, modules=False)
    yield made
    made.instrumentor.uninstrument()


def unsampled(traces: Traces, work: Callable[[], object]) -> int:
    """How many ranges are not recorded meanwhile."""
    before = traces.instrumentor.counters()["unsampled"]
    work()
    return traces.instrumentor.counters()["unsampled"] - before


x = torch.ones(3, 3, requires_grad=True)


def train() -> None:
    (x @ x).relu().sum().backward()


def test_what_is_not_recorded_is_counted_and_a_profile_sees_it(by_name: Traces) -> None:
    with by_name.tracer.start_as_current_span("not sampled"):
        train()
        first = unsampled(by_name, train)
        with profile() as prof:
            train()  # a drain in the middle counts what it recorded here, for the profile alone
        assert unsampled(by_name, train) == first
    seen = prof.events()
    assert len([event for event in seen if event.source == EventSource.TORCH]) == first > 10
    assert {"aten::mm", "MmBackward0"} <= {event.name for event in seen}
    assert by_name.spans() == []


class OpensSpans(torch.autograd.Function):
    """Its forward and backward are PyTorch's ranges, and open a span that is sampled."""

    span: Any

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        with OpensSpans.span("sampled"):
            return value.mul(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with OpensSpans.span("sampled"):
            return gradients[0].div(2)


def test_a_sampled_span_inside_an_operator_of_an_unsampled_one(by_name: Traces) -> None:
    OpensSpans.span = staticmethod(by_name.tracer.start_as_current_span)
    with by_name.tracer.start_as_current_span("not sampled"):
        OpensSpans.apply(x).sum().backward()
        x.sin()
    spans = by_name.by_name()
    assert {"aten::mul", "aten::div", "sampled"} <= spans.keys()
    assert "aten::sin" not in spans
    assert spans["aten::mul"].parent.span_id != spans["aten::div"].parent.span_id


def test_extras_are_there_from_the_first_range_of_a_sampled_span_on(by_name: Traces) -> None:
    with by_name.tracer.start_as_current_span("not sampled"):
        train()
        with by_name.tracer.start_as_current_span("sampled"):
            x.cos()
        x.sin()
    spans = by_name.by_name()
    assert spans.keys() == {"sampled", "aten::cos"}
    assert spans["aten::cos"].attributes["recfn.input_shapes"] == ("[3, 3]",)
