"""An instrumented program with a provider of its own, and the paths of spans that it exports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from patience import PATIENCE_S

torch = pytest.importorskip("torch")
RANGES = [record_function, torch.profiler.record_function]
EVERY_RANGE: dict[str, Any] = dict.fromkeys(
    ["span_budget", "ordinary_span_budget", "trace_span_budget", "spans_per_second", "roots_per_second"]
)


class Traces:
    """A provider, an instrumentation that makes every range a span, and what was exported.

    Args:
        keywords: of the provider.
    """

    def __init__(self, **keywords: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**keywords)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("program")
        self.x = torch.ones(4)
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.instrumentor.instrument(tracer_provider=self.provider, **EVERY_RANGE)

    def spans(self) -> list[ReadableSpan]:
        self.instrumentor.flush(PATIENCE_S)
        return list(self.exporter.get_finished_spans())

    def paths(self) -> Counter[str]:
        """How often there is a span of those names below each other."""
        spans = {span.context.span_id: span for span in self.spans()}
        return Counter("/".join(reversed(list(_names(span, spans)))) for span in spans.values())

    def all_paths(self) -> Counter[str]:
        """The same at the end of the instrumentation, with the roots that were open until then."""
        self.instrumentor.uninstrument()
        return self.paths()


def _names(span: ReadableSpan | None, spans: dict[int, ReadableSpan]) -> Iterator[str]:
    while span is not None:
        yield span.name
        if span.parent is not None:
            assert spans[span.parent.span_id].context.trace_id == span.context.trace_id
        span = spans[span.parent.span_id] if span.parent is not None else None
