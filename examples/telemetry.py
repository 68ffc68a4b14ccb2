"""Where the examples send their spans: over OTLP to localhost:4317 when something listens there,
else to a file, as OTLP JSON.

Either way one span and everything below it is kept, for the tree in the terminal.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from tree import descendants, print_tree

OTLP_PORT = 4317
JAEGER = "http://localhost:16686"
SLACK_NS = 5_000_000  # two clocks may differ by as much while one is set


class OneTree(SpanProcessor):
    """Keeps the first span that ``wanted`` picks and what is below it.

    A parent comes after its children, so spans of the same trace and time are kept until the end
    tells which belong to it; no more than ``limit``.
    """

    def __init__(self, wanted: Callable[[ReadableSpan], bool], limit: int = 20_000) -> None:
        self.root: ReadableSpan | None = None
        self._wanted = wanted
        self._kept: deque[ReadableSpan] = deque(maxlen=limit)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Looks for the root until it is found."""
        if self.root is None and self._wanted(span):
            self.root = span

    def on_end(self, span: ReadableSpan) -> None:
        """Keeps what may be below the root."""
        root = self.root
        if root is None or span.context.trace_id != root.context.trace_id:
            return
        if (
            span.start_time >= root.start_time - SLACK_NS
            and span.start_time <= (root.end_time or span.start_time) + SLACK_NS
        ):
            self._kept.append(span)

    def spans(self) -> list[ReadableSpan]:
        """Those below the root."""
        return descendants(self.root, list(self._kept)) if self.root else []


class Telemetry:
    """A tracer provider with its exporters; ``close()`` sends what is left."""

    def __init__(self, service: str, file: Path, wanted: Callable[[ReadableSpan], bool]) -> None:
        self.exported = something_listens(OTLP_PORT)
        self.file = file
        self.tree = OneTree(wanted)
        self.provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self.provider.add_span_processor(self.tree)
        self.provider.add_span_processor(BatchSpanProcessor(self._exporter()))
        trace.set_tracer_provider(self.provider)

    def _exporter(self) -> SpanExporter:
        if self.exported:
            return OTLPSpanExporter(endpoint=f"http://localhost:{OTLP_PORT}", insecure=True)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.unlink(missing_ok=True)
        return FileSpanExporter(self.file)  # appends: processes that load data share the file

    def close(self) -> None:
        """Sends what is left. Nothing is instrumented any more."""
        self.provider.shutdown()

    def print_tree(self) -> None:
        """The kept span and what is below it."""
        if self.tree.root is None:
            print("No span was kept: the run was too short.")
            return
        spans = self.tree.spans()
        print(
            f"\nOne {self.tree.root.name!r} span and the {len(spans)} spans below it, in"
            " milliseconds:\n"
        )
        print_tree(self.tree.root, spans)

    def where(self) -> str:
        """Where the spans went, and how to see them."""
        if self.exported:
            return (
                f"Spans were sent to localhost:{OTLP_PORT}. Where Jaeger stands behind it, they are"
                f" at {JAEGER}"
            )
        return (
            f"Spans, as OTLP JSON, a request a line: {describe(self.file)}\n    Jaeger's page opens"
            " that file: Search, Upload. Or start it as docs/collector.md says and run this again."
        )


def something_listens(port: int) -> bool:
    """Whether a connection to the port of this machine is accepted."""
    try:
        socket.create_connection(("localhost", port), timeout=0.5).close()
    except OSError:
        return False
    return True


def describe(file: Path) -> str:
    """Its path and size."""
    return f"{file} ({file.stat().st_size / 1e6:.1f} MB)"
