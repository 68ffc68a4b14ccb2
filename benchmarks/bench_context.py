"""What OpenTelemetry's own functions cost the program while we are instrumented: ``attach`` with
``detach``, ``get_current``, and a span through the SDK; beside the same without us.

    python benchmarks/bench_context.py [rounds]

Other instrumentations and log lines call them all the time, mostly with no range of ours near. All
sides take turns in one process: in each round we are instrumented anew, and the sides inside a
range, of ``record_function`` or of a ``step``, run below a span of the program's, as a request has
one. A processor drops the spans. The median of the rounds counts, and the ratio is that of the
medians; "goal" is what design demands at most.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from lib.command_line import read_number, sized
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otel_recfn import OtelRecordFunctionInstrumentor, record_function, step

ROUNDS = sized(40, 1)
CALLS = {
    "attach + detach": sized(2_000, 50),
    "get_current": sized(4_000, 50),
    "SDK span": sized(300, 50),
}
"""How many calls a turn has."""
BARE, OUTSIDE, RANGE, STEP = "bare", "outside", "in a range", "in a step"
GOALS = {
    "attach + detach": {OUTSIDE: 1.5, RANGE: 2.5, STEP: 2.5},
    "get_current": {OUTSIDE: 1.3, RANGE: 3.0, STEP: 3.0},
    "SDK span": {OUTSIDE: 1.1, RANGE: 1.3, STEP: 1.3},
}

Work = Callable[[int], object]
Times = dict[tuple[str, str], list[float]]
"""Nanoseconds of a call, by what is called and where, a number for each round."""


class Drop(SpanProcessor):
    """A processor that does nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        pass


def attach_and_detach(number: int) -> None:
    made = trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(1, 2, False)))
    attach, detach = context.attach, context.detach
    for _ in range(number):
        detach(attach(made))


def get_current(number: int) -> None:
    current = context.get_current
    for _ in range(number):
        current()


def spans(tracer: trace.Tracer) -> Work:
    def work(number: int) -> None:
        for _ in range(number):
            with tracer.start_as_current_span("span"):
                pass

    return work


def measure(works: dict[str, Work], where: str, times: Times) -> None:
    """A turn of each, after a short one that doesn't count."""
    for name, work in works.items():
        work(CALLS[name] // 5)
        began = time.thread_time_ns()
        work(CALLS[name])
        times.setdefault((name, where), []).append((time.thread_time_ns() - began) / CALLS[name])


def one_round(provider: TracerProvider, works: dict[str, Work], times: Times) -> None:
    """A turn of every side."""
    tracer = provider.get_tracer("bench")
    insides: dict[str, Callable[[], AbstractContextManager[object]]] = {
        OUTSIDE: nullcontext,
        RANGE: lambda: record_function("range"),
        STEP: lambda: step("step"),
    }
    with tracer.start_as_current_span("request"):
        measure(works, BARE, times)
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    for where, inside in insides.items():
        with tracer.start_as_current_span("request"), inside():
            measure(works, where, times)
    instrumentor.uninstrument()


def main() -> None:
    """Print a row for each function and place."""
    rounds = read_number(__doc__, "rounds", ROUNDS)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Drop())
    works: dict[str, Work] = {
        "attach + detach": attach_and_detach,
        "get_current": get_current,
        "SDK span": spans(provider.get_tracer("program")),
    }
    times: Times = {}
    for _ in range(rounds):
        one_round(provider, works, times)
    print(f"{'':<32}{'ns a call':>10}{'ratio':>8}{'goal':>8}")
    for name, goals in GOALS.items():
        bare = statistics.median(times[name, BARE])
        print(f"{name + ', ' + BARE:<32}{bare:>10,.0f}")
        for where, goal in goals.items():
            ours = statistics.median(times[name, where])
            print(f"{name + ', ' + where:<32}{ours:>10,.0f}{ours / bare:>8.2f}{goal:>8.2f}")


if __name__ == "__main__":
    main()
