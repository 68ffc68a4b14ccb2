"""The tree that the examples print holds what it should."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        return __import__(name)

    return load


@pytest.fixture
def spans() -> Sequence[ReadableSpan]:
    """Spans with everything a span can have: step > (add, 2 x linear > mm)."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "test"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("scope", "1.0")
    elsewhere = trace.SpanContext(7 << 64, 9, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    parent = trace.set_span_in_context(trace.NonRecordingSpan(elsewhere))
    attributes = {"text": "a", "number": 2**40, "share": 0.5, "yes": True, "list": [1, 2]}
    links = [trace.Link(elsewhere, {"why": "x"})]
    with tracer.start_as_current_span("step", parent, attributes=attributes, links=links) as step:
        step.add_event("something", {"with": "attributes"})
        tracer.start_span("aten::add").end()
        for number in range(2):
            with tracer.start_as_current_span(f"nn.Module: Linear_{number}", kind=trace.SpanKind.SERVER):
                tracer.start_span("aten::mm").end()
        step.set_status(trace.StatusCode.ERROR, "it broke")
    return exporter.get_finished_spans()


def test_the_tree_folds_siblings_that_look_alike(
    example: Any, spans: Sequence[ReadableSpan], capsys: pytest.CaptureFixture[str]
) -> None:
    root = next(span for span in spans if span.name == "step")
    example("tree").print_tree(root, spans, least_share=0)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:-2] for line in lines] == [
        ["step"],
        ["├─", "aten::add"],
        ["└─", "nn.Module:", "Linear", "2", "x"],
        ["└─", "aten::mm", "2", "x"],
    ]


def test_the_tree_sums_up_what_is_short(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    context = trace.SpanContext(1, 1, is_remote=False)
    root = ReadableSpan("step", context, start_time=0, end_time=1000)
    lengths = {"a": 90, "b": 300, "c": 80, "d": 3}
    below = [
        ReadableSpan(name, trace.SpanContext(1, 2 + place, is_remote=False), context, start_time=place, end_time=place + length)
        for place, (name, length) in enumerate(lengths.items())
    ]
    example("tree").print_tree(root, below, least_share=0.1)
    lines = [line.split()[:-2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["step"], ["├─", "b"], ["└─", "…", "shorter", "ones", "3", "x"]]
    example("tree").print_tree(root, below[-1:], least_share=0.1)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_descendants_are_those_below_the_root_only(example: Any, spans: Sequence[ReadableSpan]) -> None:
    linear = next(span for span in spans if span.name.endswith("Linear_1"))
    below = example("tree").descendants(linear, spans)
    assert [span.name for span in below] == ["aten::mm"]
    assert below[0].parent.span_id == linear.context.span_id
