"""How many ranges a second arrive in full at a local OTLP server in a process of its own, every one of them as a span.

python benchmarks/otlp_throughput.py [--seconds S] [--rate N] [--torch] [--profile]

The rate is what the program makes; where something is dropped, the next run should ask for less. With ``--profile`` it is said
which threads took how much processor time.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otlp_counting import server

from otel_recfn import OtelRecordFunctionInstrumentor, record_function

BURST = 1000
TELL_S = 10.0


def make_ranges() -> int:
    """A burst of ranges of a Python program."""
    for _ in range(BURST):
        with record_function("step"):
            pass
    return BURST


def operators() -> Callable[[], int]:
    """A burst of operators of PyTorch, as many as it is."""
    import torch

    one = torch.ones(2)

    def burst() -> int:
        for _ in range(BURST):
            one.neg()
        return BURST

    return burst


def run(burst: Callable[[], int], seconds: float, rate: float) -> tuple[int, float]:
    """How many were made, in how many seconds."""
    made, began, told = 0, time.monotonic(), 0.0
    tracer = trace.get_tracer("program")
    with tracer.start_as_current_span("program"):
        while (passed := time.monotonic() - began) < seconds:
            if passed > told + TELL_S:
                told = passed
                print(f"    after {passed:5.0f} s: {made:,} ranges, RSS {rss_mib()} MiB", flush=True)
            if made > rate * passed:
                time.sleep(0.001)
                continue
            made += burst()
    return made, time.monotonic() - began


def rss_mib() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def thread_seconds() -> dict[str, float]:
    """Processor time by thread."""
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for task in os.listdir("/proc/self/task"):
        fields = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()
        name = names.get(int(task), "others")
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / ticks
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=float("inf"), help="ranges a second, at most")
    parser.add_argument("--torch", action="store_true", help="operators of PyTorch in place of ranges")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    burst = operators() if options.torch else make_ranges
    trace.set_tracer_provider(TracerProvider())
    with server() as counting:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = counting.endpoint
        instrumentor = OtelRecordFunctionInstrumentor()
        instrumentor.instrument(span_exporter="otlp-http", span_budget=None, roots_per_second=None, buffer_bytes=1 << 26)
        began = time.monotonic()
        made, took = run(burst, options.seconds, options.rate)
        flushed = instrumentor.flush(60)
        total = time.monotonic() - began
        threads, counters = thread_seconds(), instrumentor.counters()
        instrumentor.uninstrument()
        spans, size = counting.end()
    lost = {
        name: count for name, count in counters.items() if count and name.endswith(("dropped", "failed", "abandoned", "out"))
    }
    print(f"made {made:,} in {took:.1f} s: {made / took:,.0f} a second; flushed: {flushed}, after {total - took:.1f} s more")
    print(f"arrived {spans:,} spans: {spans / total:,.0f} a second, {size / max(spans, 1):.0f} bytes a span; lost: {lost or 0}")
    print(f"largest RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    if options.profile:
        for name, seconds in sorted(threads.items(), key=lambda each: -each[1]):
            print(f"    {name:<24} {seconds:6.2f} s of processor time, {seconds / max(spans, 1) * 1e9:6.0f} ns a span")


if __name__ == "__main__":
    main()
