"""The program opens spans inside ranges, and sees ranges as its current span."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import nullcontext
from typing import Any

import pytest
from exported_traces import RANGES, Traces
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult

from otel_recfn import profile, record_function
from patience import PATIENCE_S

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


@pytest.mark.parametrize("range_", RANGES)
def test_a_span_inside_a_range_is_its_child_and_has_what_runs_in_it(traces: Traces, range_: Any) -> None:
    with traces.tracer.start_as_current_span("outer"), range_("range"):
        torch.add(traces.x, traces.x)
        with traces.tracer.start_as_current_span("inner"):
            torch.mul(traces.x, traces.x)
        torch.sub(traces.x, traces.x)
    paths = traces.paths()
    assert paths["outer/range/aten::add"] == paths["outer/range/aten::sub"] == 1
    around = "outer/range" if range_ is record_function else "outer"  # PyTorch's ranges are not shown as current spans
    assert paths[f"{around}/inner/aten::mul"] == 1


def test_a_span_inside_a_forward_is_the_module_calls_child(traces: Traces) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            with traces.tracer.start_as_current_span("in forward"):
                return torch.mul(x, x)

    with traces.tracer.start_as_current_span("outer"):
        Model()(traces.x)
    assert traces.paths()["outer/nn.Module: Model_0/in forward/aten::mul"] == 1


class CallsBack(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """A range of PyTorch's, in which Python runs."""

    @staticmethod
    def forward(ctx: Any, x: Any, traces: Traces) -> Any:
        with record_function("inner"), traces.tracer.start_as_current_span("span"):
            return x.clone()


def test_a_span_inside_an_operator_of_a_thread_that_was_handed_a_range_is_in_its_trace(traces: Traces) -> None:
    def work(context: Any) -> None:
        otel_context.attach(context)
        CallsBack.apply(traces.x.clone().requires_grad_(), traces)

    with record_function("outer"):
        thread = threading.Thread(target=work, args=(otel_context.get_current(),))
        thread.start()
        thread.join()
    traces.instrumentor.uninstrument()
    assert traces.paths()["MainThread/outer/CallsBack/inner/span/aten::clone"] == 1


class OpensAnotherTrace(CallsBack):
    @staticmethod
    def forward(ctx: Any, x: Any, traces: Traces) -> Any:
        with traces.tracer.start_as_current_span("of another trace", otel_context.Context()):
            torch.mul(x, x)
        return CallsBack.forward(ctx, x, traces)


@pytest.mark.parametrize("around", ["MainThread", "request"])
def test_a_span_inside_an_operator_in_which_another_trace_was_current_is_in_the_operators(traces: Traces, around: str) -> None:
    with traces.tracer.start_as_current_span(around) if around == "request" else nullcontext():
        OpensAnotherTrace.apply(traces.x.clone().requires_grad_(), traces)
    traces.instrumentor.uninstrument()
    assert traces.paths()[f"{around}/OpensAnotherTrace/inner/span/aten::clone"] == 1


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


def test_what_is_current_can_be_copied_and_pickled_where_the_programs_own_can(traces: Traces) -> None:
    remote = trace.NonRecordingSpan(trace.SpanContext(1, 2, True, trace.TraceFlags(trace.TraceFlags.SAMPLED)))
    with trace.use_span(remote), record_function("range"):
        current = trace.get_current_span()
        for made in (copy.copy(current), copy.deepcopy(current), pickle.loads(pickle.dumps(current))):
            assert made.get_span_context() == current.get_span_context() != remote.get_span_context()
    with traces.tracer.start_as_current_span("own") as own, record_function("range"):
        assert copy.copy(trace.get_current_span()) is not own
        with pytest.raises(TypeError):
            pickle.dumps(trace.get_current_span())


class CuriousSampler(Sampler):
    """Asks what is current, as one that logs does."""

    asked = 0

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **keywords: Any) -> SamplingResult:
        self.asked += 1
        trace.get_current_span()
        return ALWAYS_ON.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        return "curious"


def test_a_sampler_that_asks_for_the_current_span_is_asked_once() -> None:
    sampler = CuriousSampler()
    traces = Traces(sampler=sampler)
    with record_function("range"):
        assert trace.get_current_span().get_span_context().is_valid
    asked = sampler.asked
    traces.instrumentor.uninstrument()
    assert asked == 1


def test_a_span_inside_a_range_that_has_no_span_around_it_is_in_the_ranges_trace(traces: Traces) -> None:
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
    assert paths["MainThread/first/second/inner/aten::mul"] == paths["MainThread/first/aten::add"] == 1
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
    with traces.tracer.start_as_current_span("outer") as outer, profile(), record_function("earlier"):
        assert trace.get_current_span() is outer
        traces.instrumentor.instrument(tracer_provider=traces.provider)
        assert trace.get_current_span() is outer
        with record_function("later"):
            assert trace.get_current_span() is not outer
        traces.instrumentor.uninstrument()
        with record_function("too late"):
            assert trace.get_current_span() is outer
    traces.instrumentor.instrument(tracer_provider=traces.provider)
