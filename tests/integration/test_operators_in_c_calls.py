"""Operators that begin directly in a call of a C function, in which no other call begins: they lie in it, in every context."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TIMES = 3
"""The first time a function gets its name, which takes another way."""
Numbers = Any
Program = Callable[[trace.Tracer, Numbers], Any]


def add(_: trace.Tracer, numbers: Numbers) -> Any:
    return torch.add(numbers, numbers)


def add_in_a_copy(_: trace.Tracer, numbers: Numbers) -> Any:
    return contextvars.copy_context().run(torch.add, numbers, numbers)


def add_in_its_context(tracer: trace.Tracer, numbers: Numbers) -> Any:
    with tracer.start_as_current_span("ended"):
        current = contextvars.copy_context()
    return current.run(torch.add, numbers, numbers)


def add_in_a_span(tracer: trace.Tracer, numbers: Numbers) -> Any:
    with tracer.start_as_current_span("span"):
        return max(map(torch.add, [numbers[0]], [numbers[1]]))


@pytest.mark.parametrize(
    ("program", "around"),
    [
        (add, ["<built-in method add of type object>", "add"]),
        (add_in_a_copy, ["<built-in method run of _contextvars.Context object>", "add_in_a_copy"]),
        (
            add_in_its_context,
            ["<built-in method run of _contextvars.Context object>", "add_in_its_context"],
        ),
        (add_in_a_span, ["<built-in function max>", "span"]),
    ],
)
def test_they_lie_in_the_call(instrumentor: OtelRecordFunctionInstrumentor, program: Program, around: list[str]) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, numbers = provider.get_tracer(__name__), torch.ones(2)
    instrumentor.instrument(tracer_provider=provider, python_calls=True, span_budget=None)
    with tracer.start_as_current_span("outer"):
        for _ in range(TIMES):
            program(tracer, numbers)
    instrumentor.uninstrument()
    provider.shutdown()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    found = [names_around(span, spans)[:2] for span in spans.values() if span.name == "aten::add"]
    assert found == [around] * TIMES


def names_around(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> list[str]:
    """The spans that it lies in, from the innermost one on; of a Python function without its place."""
    names = []
    while span.parent is not None:
        span = spans[span.parent.span_id]
        names.append(span.name.rpartition(": ")[2])
    return names
