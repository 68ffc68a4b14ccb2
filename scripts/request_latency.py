"""How long after a request's end its spans have been handed to the provider's span processors, at
the default settings.

    python scripts/request_latency.py --at-once 1 8
    python scripts/request_latency.py --at-once 8 --busy-threads 1 --export-seconds 0.3

Each request calls a small model in a span. A processor notes when it gets spans of ours. The exit
code is 1 where a request's last one came later than ``--seconds``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

# Else threads of OpenMP wait for each other busily on a machine that is busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_recfn import OtelRecordFunctionInstrumentor


class Notes(SpanProcessor):
    """When the last span of ours of each trace came."""

    def __init__(self) -> None:
        self.last: dict[int, float] = {}

    def on_end(self, span: ReadableSpan) -> None:
        if (
            span.instrumentation_scope is not None
            and span.instrumentation_scope.name == "otel_recfn"
            and span.context is not None
        ):
            self.last[span.context.trace_id] = time.monotonic()


class TakesTime(SpanExporter):
    """For each batch so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        time.sleep(self._seconds)
        return SpanExportResult.SUCCESS


def compute() -> None:
    """Without end."""
    while True:
        sum(range(1000))


def delays(provider: TracerProvider, notes: Notes, requests: int, at_once: int) -> list[float]:
    """Of each request, in seconds."""
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()) for _ in range(40)]
    )
    tracer = provider.get_tracer("requests")
    ended = dict[int, float]()

    def request(_: int) -> None:
        with tracer.start_as_current_span("request") as span, torch.no_grad():
            for _ in range(10):
                model(torch.ones(4, 32))
        ended[span.get_span_context().trace_id] = time.monotonic()

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(request, range(requests)))
    time.sleep(5.0)
    return [notes.last.get(trace, float("inf")) - end for trace, end in ended.items()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--busy-threads", type=int, default=0)
    parser.add_argument("--export-seconds", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=1.5)
    asked = parser.parse_args()
    provider = TracerProvider(shutdown_on_exit=False)
    notes = Notes()
    provider.add_span_processor(notes)
    provider.add_span_processor(BatchSpanProcessor(TakesTime(asked.export_seconds)))
    OtelRecordFunctionInstrumentor().instrument(tracer_provider=provider)
    for _ in range(asked.busy_threads):
        threading.Thread(target=compute, daemon=True).start()
    longest = 0.0
    for at_once in asked.at_once:
        found = delays(provider, notes, asked.requests, at_once)
        longest = max(longest, *found)
        print(
            f"{at_once} at once: median {statistics.median(found):.2f} s, longest"
            f" {max(found):.2f} s"
        )
    return int(longest > asked.seconds)


if __name__ == "__main__":
    sys.exit(main())
