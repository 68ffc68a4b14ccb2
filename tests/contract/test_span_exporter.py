"""With ``span_exporter`` all spans of ours go to the backend, steps too, and the program needs
no tracer provider.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from helpers.forked_work import in_child
from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, batch, record_function, step

pytestmark = pytest.mark.one_python


class Exported:
    """A program without a tracer provider of its own, unless it sets one, and the server to
    which it exports.
    """

    def __init__(self, server: OtlpServer) -> None:
        self.server = server
        self.instrumentor = OtelRecordFunctionInstrumentor()

    def instrument(self, **settings: Any) -> None:
        self.instrumentor.instrument(span_exporter="otlp-http", roots_per_second=None, **settings)

    def spans(self) -> dict[str, Span]:
        """All that arrived, by name, each once, and with its parent."""
        assert self.instrumentor.flush(PATIENCE_S)
        spans = self.server.spans
        by_name = {span.name: span for span in spans}
        assert len(by_name) == len(spans)
        counters = self.instrumentor.counters()
        assert (counters["exported"], counters["waiting"]) == (len(spans), 0)
        return by_name


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exported]:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with OtlpServer("http") as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.endpoint)
        made = Exported(server)
        yield made
        made.instrumentor.uninstrument()


def test_steps_of_a_signal_handler_arrive_too(exported: Exported) -> None:
    exported.instrument()
    steps: list[str] = []

    def handle(*_: object) -> None:
        with step("in handler"):
            steps.append("in handler")
        # Not before: a handler that is slow would interrupt itself.
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        for _ in range(3000):
            with step("train"):
                steps.append("train")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert exported.instrumentor.flush(PATIENCE_S)
    assert Counter(span.name for span in exported.server.spans) == Counter(steps)
    assert exported.instrumentor.counters()["waiting"] == 0


def train() -> None:
    with step("train", 3):
        with record_function("work"):
            pass
        trace.get_current_span().set_attribute("loss", 0.5)


@pytest.mark.parametrize(
    "hook", [None, lambda _row, _attributes: None], ids=["encoded", "made by the SDK"]
)
def test_steps_need_no_processor_and_none_sees_them(
    exported: Exported, hook: Callable[..., Any] | None
) -> None:
    provider = TracerProvider(
        resource=Resource({"service.name": "trainer"}), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    exported.instrument(tracer_provider=provider, span_hook=hook)
    with provider.get_tracer("program").start_as_current_span("epoch"):
        train()
    spans = exported.spans()
    [epoch] = exporter.get_finished_spans()
    assert spans.keys() == {"train", "work"}
    assert spans["work"].parent_span_id == spans["train"].span_id
    assert int.from_bytes(spans["train"].parent_span_id, "big") == epoch.context.span_id
    attributes = {pair.key: pair.value for pair in spans["train"].attributes}
    assert (attributes["recfn.step.number"].int_value, attributes["loss"].double_value) == (3, 0.5)
    [resource] = {one.resource.SerializeToString() for one in exported.server.resource_spans}
    assert b"trainer" in resource


@pytest.mark.parametrize(
    "hook", [None, lambda _row, _attributes: None], ids=["encoded", "made by the SDK"]
)
def test_so_do_batches_and_the_spans_of_their_requests(
    exported: Exported, hook: Callable[..., Any] | None
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    exported.instrument(tracer_provider=provider, span_hook=hook)
    with provider.get_tracer("program").start_as_current_span("request") as request:
        pass
    with batch([request, None]), record_function("work"):
        pass
    assert exported.instrumentor.flush(PATIENCE_S)
    spans = exported.server.spans
    [work] = [span for span in spans if span.name == "work"]
    [forward] = [span for span in spans if span.span_id == work.parent_span_id]
    [request_span] = [span for span in spans if span not in (work, forward)]
    assert (forward.name, request_span.name) == ("batch", "batch")
    request_id = request.get_span_context().span_id.to_bytes(8, "big")
    assert request_span.parent_span_id == request_id
    assert [link.span_id for link in forward.links] == [request_id]
    assert [link.span_id for link in request_span.links] == [forward.span_id]
    attributes = {pair.key: pair.value for pair in request_span.attributes}
    assert attributes["recfn.batch.size"].int_value == 2
    assert len(attributes["recfn.unit.top"].array_value.values) == 1
    counters = exported.instrumentor.counters()
    assert (counters["recorded"], counters["added"], counters["exported"]) == (2, 1, 3)


def test_a_program_without_a_provider(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "trainer")
    exported.instrument()
    train()
    with record_function("afterwards"):
        pass
    spans = exported.spans()
    assert spans.keys() == {"train", "work", "MainThread", "afterwards"}
    assert (spans["train"].parent_span_id, spans["MainThread"].parent_span_id) == (b"", b"")
    assert spans["work"].parent_span_id == spans["train"].span_id
    assert all(
        b"trainer" in one.resource.SerializeToString() for one in exported.server.resource_spans
    )


def test_a_step_lies_in_the_launchers_span(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{0xABC:032x}-{0xDEF:016x}-01")
    exported.instrument()
    train()

    def child() -> None:
        with step("in a fork"):
            pass
        assert exported.instrumentor.flush(PATIENCE_S)

    in_child(child)
    assert exported.instrumentor.flush(PATIENCE_S)
    steps = [span for span in exported.server.spans if span.name in ("train", "in a fork")]
    assert len(steps) == 2
    assert {
        (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big"))
        for span in steps
    } == {(0xABC, 0xDEF)}


@pytest.mark.parametrize("by", ["variable", "provider"])
def test_the_sampler_is_asked(exported: Exported, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "variable":
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        exported.instrument()
    else:
        exported.instrument(
            tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
        )
    train()
    assert exported.spans() == {}


def test_a_step_that_is_open_at_a_fork_is_the_parents(exported: Exported) -> None:
    exported.instrument()
    training = step("train")
    training.__enter__()

    def child() -> None:
        training.__exit__(None, None, None)
        with step("in the child"):
            pass
        assert exported.instrumentor.flush(PATIENCE_S)

    in_child(child)
    training.__exit__(None, None, None)
    assert exported.instrumentor.flush(PATIENCE_S)
    assert sorted(span.name for span in exported.server.spans) == ["in the child", "train"]


def test_a_step_that_is_open_at_the_end_is_sent(exported: Exported) -> None:
    exported.instrument()
    training = step("train")
    training.__enter__()
    with record_function("work"):
        pass
    exported.instrumentor.uninstrument()
    training.__exit__(None, None, None)
    spans = {span.name: span for span in exported.server.spans}
    assert len(exported.server.spans) == 2
    assert spans["work"].parent_span_id == spans["train"].span_id
