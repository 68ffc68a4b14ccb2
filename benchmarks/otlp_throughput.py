"""How many ranges a second arrive in full at a local OTLP server in a process of its own, every one
of them as a span.

    python benchmarks/otlp_throughput.py [--operators] [--seconds S] [--rate N] [--profile]
    [--rss-every S]

The rate is what the program makes; where something is dropped, the next run should ask for less.
``--profile`` says what stands in the way: the same program bare, recorded into a sink that does
nothing, and exported, each in a process of its own, with the share of a core that each thread took.
``--seconds 600 --rss-every 30`` says what memory does at full speed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib.command_line import make_parser, sized
from lib.otlp_counting import server
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.counters import losses
from otel_recfn.sinks.protocol import Sink

BURST = 1000
BARE, RECORDED, EXPORTED = "bare", "recorded", "exported"
EVERYTHING = {"span_budget": None, "roots_per_second": None, "buffer_bytes": 1 << 26}


class Discards(Sink):
    """A sink that does nothing."""

    name = "discards"

    def write(self, batch: object) -> None:
        """Forget it."""

    def flush(self, timeout_s: float) -> bool:
        """Nothing waits."""
        return True

    def close(self, timeout_s: float) -> None:
        """Nothing is open."""

    def counters(self) -> Mapping[str, int]:
        """None."""
        return {}

    def after_fork_in_child(self) -> None:
        """None in a child."""


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


def run(
    burst: Callable[[], int], seconds: float, rate: float, report_s: float
) -> tuple[int, float]:
    """How many were made, in how many seconds."""
    made = 0
    began = time.monotonic()
    reported_s = 0.0
    tracer = trace.get_tracer("program")
    with tracer.start_as_current_span("program"):
        while (passed := time.monotonic() - began) < seconds:
            if passed > reported_s + report_s:
                reported_s = passed
                print(
                    f"    after {passed:5.0f} s: {made:,} ranges, RSS {rss_mib()} MiB", flush=True
                )
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
    found: dict[str, float] = {}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for task in os.listdir("/proc/self/task"):
        name = names.get(int(task), "others")
        found[name] = found.get(name, 0.0) + seconds_of(Path("/proc/self/task") / task)
    return found


def seconds_of(task: Path) -> float:
    """Of one thread; in ticks of the clock where the kernel counts no nanoseconds."""
    with suppress(OSError):
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def instrumented(way: str) -> OtelRecordFunctionInstrumentor | None:
    """As the way asks for it; None for a bare program."""
    if way == BARE:
        return None
    instrumentor = OtelRecordFunctionInstrumentor()
    if way == RECORDED:
        instrumentor.instrument(sinks=[Discards()], **EVERYTHING)
    else:
        trace.set_tracer_provider(TracerProvider())
        instrumentor.instrument(span_exporter="otlp-http", **EVERYTHING)
    return instrumentor


def measure(options: argparse.Namespace) -> None:
    """One way, in this process. Without a provider nobody takes spans."""
    burst = operators() if options.operators else make_ranges
    with server() if options.way == EXPORTED else nullcontext() as counting:
        if counting is not None:
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = counting.endpoint
        instrumentor = instrumented(options.way)
        before = thread_seconds()
        began = time.monotonic()
        made, took = run(burst, options.seconds, options.rate, options.rss_every)
        flushed = instrumentor is None or instrumentor.flush(60)
        total = time.monotonic() - began
        threads = thread_seconds()
        counters = dict(instrumentor.counters()) if instrumentor is not None else {}
        if instrumentor is not None:
            instrumentor.uninstrument()
        arrived = counting.end() if counting is not None else None
    print(
        f"{options.way}: made {made:,} in {took:.1f} s: {made / took:,.0f} a second; RSS"
        f" {max_mib()} MiB at most"
    )
    if arrived is not None:
        print_arrivals(*arrived, total, total - took if flushed else None, counters)
    if options.shares:
        print_thread_shares(
            {name: seconds - before.get(name, 0.0) for name, seconds in threads.items()},
            total,
            made,
        )


def print_arrivals(
    spans: int, size: int, total: float, left_s: float | None, counters: Mapping[str, int]
) -> None:
    """What the server got."""
    lost = losses(counters)
    after = (
        "the flush was not done in time"
        if left_s is None
        else f"the last {left_s:.1f} s after the program"
    )
    rate = f"{spans / total:,.0f} a second, {size / max(spans, 1):.0f} bytes a span"
    print(f"    arrived {spans:,} spans: {rate}, {after}; lost: {lost or 0}")


def print_thread_shares(seconds: Mapping[str, float], total: float, made: int) -> None:
    """What each took of a core."""
    for name, own in sorted(seconds.items(), key=lambda each: -each[1]):
        if own:
            print(
                f"    {name:<24} {own / total:6.1%} of a core, {own / max(made, 1) * 1e9:6.0f} ns a"
                " range",
                flush=True,
            )


def max_mib() -> int:
    """The largest RSS of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=sized(5.0, 0.05))
    parser.add_argument("--rate", type=float, default=float("inf"), help="ranges a second, at most")
    parser.add_argument(
        "--operators", action="store_true", help="operators of PyTorch in place of ranges"
    )
    parser.add_argument("--rss-every", type=float, default=30.0, metavar="S")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also bare and recorded alone, with the share of each thread",
    )
    parser.add_argument("--way", choices=(BARE, RECORDED, EXPORTED), default=EXPORTED)
    parser.add_argument("--shares", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.profile:
        return measure(options)
    for way in (BARE, RECORDED, EXPORTED):
        again = [argument for argument in sys.argv[1:] if argument != "--profile"]
        subprocess.run([sys.executable, __file__, *again, "--way", way, "--shares"], check=True)
    return None


if __name__ == "__main__":
    main()
