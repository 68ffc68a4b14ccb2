"""An instrumented program with a provider of its own, and what it exports."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor

EVERY_RANGE: dict[str, Any] = dict.fromkeys(
    [
        "span_budget",
        "ordinary_span_budget",
        "trace_span_budget",
        "spans_per_second",
        "roots_per_second",
    ]
)


class Traces:
    """A provider, an instrumentation, and what was exported.

    Args:
        sampler: of the provider.
        budgets: what says which ranges become spans: every one, unless something else is given.
        settings: others of ``instrument()``.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        budgets: Mapping[str, Any] = EVERY_RANGE,
        **settings: Any,
    ) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("program")
        self.x = sys.modules["torch"].ones(4) if "torch" in sys.modules else None
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.instrumentor.instrument(tracer_provider=self.provider, **budgets, **settings)

    def serve(self, work: Callable[[], object]) -> None:
        """Do the work in a span."""
        with self.tracer.start_as_current_span("request"):
            work()

    def spans(self) -> list[ReadableSpan]:
        self.instrumentor.flush(PATIENCE_S)
        return list(self.exporter.get_finished_spans())

    def by_name(self) -> dict[str, ReadableSpan]:
        """Of each name the last one."""
        return {span.name: span for span in self.spans()}

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
