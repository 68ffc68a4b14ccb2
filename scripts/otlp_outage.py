"""A server that is killed and comes back after a minute, while a program goes on: whether all spans
arrive.

    python scripts/otlp_outage.py [--away S] [--over http|grpc]

It ends with an error where a span is missing, arrived twice or was counted as lost.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from lib.otlp_counting import Counting, server
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.trace import TracerProvider

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.counters import losses

PATIENCE_S = 60.0
RANGES = 100
TELL_S = 10.0


def exporter(over: str, counting: Counting) -> object:
    """An official one, to this server."""
    if over == "grpc":
        return OverGrpc(endpoint=counting.endpoint, insecure=True)
    return OverHttp(endpoint=f"{counting.endpoint}/v1/traces")


def make_ranges(tracer_provider: TracerProvider) -> int:
    """Some, in a span of the program."""
    with tracer_provider.get_tracer("program").start_as_current_span("work"):
        for _ in range(RANGES):
            with record_function("range"):
                pass
    return RANGES


def go_on(
    instrumentor: OtelRecordFunctionInstrumentor, provider: TracerProvider, seconds: float
) -> int:
    """Make ranges for so long, and tell what waits meanwhile."""
    made = 0
    began = time.monotonic()
    told = 0.0
    while (passed := time.monotonic() - began) < seconds:
        made += make_ranges(provider)
        if passed >= told:
            print(
                f"    away for {passed:4.0f} s: {instrumentor.counters()['waiting']:,} ranges wait",
                flush=True,
            )
            told = passed + TELL_S
        time.sleep(0.1)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--away", type=float, default=60.0, metavar="S")
    parser.add_argument("--over", choices=("http", "grpc"), default="http")
    options = parser.parse_args()
    provider = TracerProvider()
    instrumentor = OtelRecordFunctionInstrumentor()
    with server(options.over) as first:
        way = exporter(options.over, first)
        instrumentor.instrument(
            tracer_provider=provider, span_exporter=way, span_budget=None, roots_per_second=None
        )
        made = make_ranges(provider)
        assert instrumentor.flush(PATIENCE_S)
        before = first.arrived()
    print(f"{before} of {made} spans arrived; the server is killed")
    made += go_on(instrumentor, provider, options.away)
    with server(options.over, first.port) as second:
        back = time.monotonic()
        flushed = instrumentor.flush(PATIENCE_S)
        arrived = before + second.arrived()
        took = time.monotonic() - back
    counters = instrumentor.counters()
    instrumentor.uninstrument()
    lost = losses(counters)
    print(
        f"{arrived} of {made} spans arrived, {took:.1f} s after it came back; flushed: {flushed};"
        f" lost: {lost or 0}"
    )
    return 0 if arrived == made and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
