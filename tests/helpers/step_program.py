"""A program that marks its steps, in a session with spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from helpers.timeouts import PATIENCE_S
from otel_recfn import record_function
from otel_recfn.batches.selection import Selected
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.sources.steps import step


class Program:
    """A session with a capture that makes spans, and what came of it.

    Args:
        sampler: of the provider.
        provider: further arguments of the provider.
        open_range_s: of the capture.
        spans: of the sink.
    """

    def __init__(
        self,
        recorder: Recorder,
        sampler: Sampler | None = None,
        open_range_s: float | None = None,
        provider: Mapping[str, Any] | None = None,
        **spans: Any,
    ) -> None:
        self.recorder = recorder
        self.session = Session(recorder)
        self.step, self.record_function = step, record_function
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False, **(provider or {}))
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("program")
        self.rows = InMemorySink()
        self.spans_sink = SpansSink(self.provider, **{"roots_per_second": 0.001, **spans})
        self.capture = Capture(
            Selected(),
            [self.rows, self.spans_sink],
            buffer_bytes=DEFAULT_BUFFER_BYTES,
            spans=self.spans_sink,
            open_range_s=open_range_s,
        )
        self.session.start(self.capture)

    def close(self) -> None:
        self.session.at_exit()
        self.provider.shutdown()

    def stop(self) -> None:
        self.session.stop(self.capture, PATIENCE_S)
        counts = self.spans_sink.counters()
        assert counts["recorded"] + counts["added"] == sum(
            counts[name] for name in ("exported", "folded", "unsampled")
        )

    def sent(self) -> list[ReadableSpan]:
        """So far."""
        return list(self.exporter.get_finished_spans())

    def spans(self) -> list[ReadableSpan]:
        """All of them; each one's parent is there."""
        self.stop()
        spans = self.sent()
        assert {span.parent.span_id for span in spans if span.parent} <= {
            span.context.span_id for span in spans
        }
        return spans

    def paths(self) -> list[str]:
        """The names from the root, and the number of each step."""
        spans = {span.context.span_id: span for span in self.spans()}

        def path(span: ReadableSpan) -> str:
            number = (span.attributes or {}).get("recfn.step.number")
            own = span.name if number is None else f"{span.name}:{number}"
            return f"{path(spans[span.parent.span_id])}/{own}" if span.parent else own

        return sorted(path(span) for span in spans.values())
