"""The program opens spans inside ranges, and sees ranges as its current span."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
from exported_traces import RANGES, Traces
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

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
