"""A flush sends the units of spans that have ended, also where the drain before it found nothing new."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from patience import PATIENCE_S

REQUESTS = 20


class Program:
    """An instrumented program."""

    def __init__(self, processor: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(processor(self.exporter))
        self.tracer = self.provider.get_tracer("program")
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.instrumentor.instrument(tracer_provider=self.provider)

    def ranges(self) -> list[str]:
        """What a flush has sent of ours."""
        assert self.instrumentor.flush(PATIENCE_S)
        self.provider.force_flush()
        spans = self.exporter.get_finished_spans()
        return [span.name for span in spans if span.instrumentation_scope.name == "otel_recfn"]


@pytest.fixture(params=[SimpleSpanProcessor, BatchSpanProcessor])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    made = Program(request.param)
    yield made
    made.instrumentor.uninstrument()
    made.provider.shutdown()


def test_a_span_that_ends_after_its_ranges_were_drained(program: Program) -> None:
    with program.tracer.start_as_current_span("request"):
        with record_function("range"):
            pass
        assert program.ranges() == []  # drains
    assert program.ranges() == ["range"]


def test_each_request_that_a_drain_came_into(program: Program) -> None:
    for number in range(REQUESTS):
        with program.tracer.start_as_current_span("request"):
            with record_function(f"range {number}"):
                pass
            program.instrumentor.flush(PATIENCE_S)
        assert program.ranges()[-1] == f"range {number}"


def test_spans_in_each_other_end_one_by_one(program: Program) -> None:
    names = ["outer", "middle", "inner"]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(program.tracer.start_as_current_span(name))
            with record_function(f"in {name}"):
                pass
        spans = stack.pop_all()
    assert program.ranges() == []
    spans.close()
    assert sorted(program.ranges()) == ["in inner", "in middle", "in outer"]


def test_the_drain_that_a_flush_begins_with_is_the_one_that_counts(program: Program) -> None:
    span = program.tracer.start_span("request")
    with trace.use_span(span), record_function("range"):
        assert program.ranges() == []
    assert program.ranges() == []  # the range has ended, and the span hasn't
    span.end()
    assert program.ranges() == ["range"]
