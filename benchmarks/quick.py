"""What a program pays beside the recorder, on one page, in two minutes: bare, with us, their ratio
and its goal.

    make bench-quick
    python benchmarks/quick.py [--tiny]

Each side of a row runs in processes of its own, by turns with the others, since what an earlier
``instrument()`` left behind would count, too; a row shows the medians of the processes. Each
process prints the shortest of many short runs, in which nothing else had the core; but of what our
thread takes part in, the average, as the program waits for it, too.

With ``--tiny`` all sides but the first run in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib.command_line import IS_TINY, make_parser, sized
from lib.compilers import FOLDER, build_folder

ROUNDS = sized(3, 1)
SECONDS = sized(0.7, 0.0)
"""How long a side runs in each of its processes, after half of that for warming up."""
CYCLES = sized(5, 1)
"""The times that a program has switched the instrumentation on and off before it measures it."""
LAYERS = 40
BARE, OURS, IN_RANGE, INSIDE, OUTSIDE, PAIR, AGAIN = (
    "bare",
    "ours",
    "in a range",
    "inside",
    "outside",
    "pair",
    "again",
)


class Row(NamedTuple):
    """A line of the page: two sides of a program, and the most that their ratio should be."""

    title: str
    program: str
    bare: str
    ours: str
    goal: float | None = None


ROWS = [
    Row("attach + detach", "attach", BARE, OURS, 1.5),
    Row("  inside a range", "attach", BARE, IN_RANGE, 2.5),
    Row("get_current", "get_current", BARE, OURS, 1.3),
    Row("  inside a range", "get_current", BARE, IN_RANGE, 3.0),
    Row("a span of the program's", "span", BARE, OURS, 1.1),
    Row("  inside a range", "span", BARE, IN_RANGE, 1.3),
    Row("record_function, beside an empty one in C", "range", BARE, OURS, 2.0),
    Row("torch.ones(4) inside a span", "ones", BARE, INSIDE),
    Row("  outside of spans, beside inside", "ones", INSIDE, OUTSIDE, 1.05),
    Row("40 tiny layers trained inside a span", "layers", BARE, INSIDE),
    Row("  outside of spans, beside inside", "layers", INSIDE, OUTSIDE, 1.05),
    Row("  unsampled, beside empty callbacks", "layers", PAIR, OURS, 1.15),
    Row("  after 5 times on and off, beside once", "layers", OURS, AGAIN, 1.05),
    Row("  CPU of our thread a row, beside inside", "drain", INSIDE, OUTSIDE, 1.2),
]


def main() -> None:
    """The page; with two arguments, one side of one program, in this process."""
    parser = make_parser(__doc__)
    parser.add_argument("program", nargs="?", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("side", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program is not None:
        print(json.dumps(PROGRAMS[options.program](options.side)))
    else:
        show_page(measured())


def measured() -> dict[tuple[str, str], float]:
    """Nanoseconds of each side of each program."""
    runs = dict.fromkeys(
        ("layers" if row.program == "drain" else row.program, side)
        for row in ROWS
        for side in (row.bare, row.ours)
    )
    found: dict[tuple[str, str], list[float]] = {}
    with build_folder() as folder:
        os.environ.update({FOLDER: str(folder), "TORCH_CPP_LOG_LEVEL": "ERROR"})
        for _ in range(ROUNDS):
            for program, side in runs:
                run = run_here if IS_TINY and found else run_alone
                for name, result in run(program, side).items():
                    found.setdefault((name, side), []).append(result)
    return {side: statistics.median(results) for side, results in found.items()}


def run_alone(program: str, side: str) -> dict[str, float]:
    """The results of one side of a program, in a process of its own."""
    command = [sys.executable, __file__, program, side, *sized([], ["--tiny"])]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    results: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return results


def run_here(program: str, side: str) -> dict[str, float]:
    """The same in this process."""
    from otel_recfn import OtelRecordFunctionInstrumentor

    results = PROGRAMS[program](side)
    instrumentor = OtelRecordFunctionInstrumentor()
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    return results


def show_page(results: dict[tuple[str, str], float]) -> None:
    print(f"{'':<46}{'bare, ns':>12}{'ours, ns':>12}{'ratio':>8}{'goal':>7}")
    for row in ROWS:
        bare = results[row.program, row.bare]
        ours = results[row.program, row.ours]
        goal = "" if row.goal is None else f"{row.goal:>7.2f}"
        print(f"{row.title:<46}{bare:>12,.0f}{ours:>12,.0f}{ours / bare:>8.2f}{goal}")


def shortest_ns(
    work: Callable[[], object], times: int, before: Callable[[], object] = lambda: None
) -> float:
    """Nanoseconds of a call of ``work``: of the shortest run of so many, ``before`` each of which
    something else is done.
    """
    until = time.monotonic() + SECONDS / 2
    while time.monotonic() < until:
        work()
    shortest = float("inf")
    until = time.monotonic() + SECONDS
    while shortest == float("inf") or time.monotonic() < until:
        before()
        began = time.perf_counter_ns()
        for _ in range(times):
            work()
        shortest = min(shortest, (time.perf_counter_ns() - began) / times)
    return shortest


def average_ns(work: Callable[[], object]) -> float:
    """Nanoseconds of a call of ``work``, in the average."""
    until = time.monotonic() + SECONDS / 2
    while time.monotonic() < until:
        work()
    calls = 0
    began = time.perf_counter_ns()
    while not calls or time.perf_counter_ns() - began < 2 * SECONDS * 1e9:
        work()
        calls += 1
    return (time.perf_counter_ns() - began) / calls


def make_provider(*, sampled: bool = True) -> Any:
    """A tracer provider whose spans go nowhere."""
    from lib.no_export import NoExport
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    provider = TracerProvider(ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(NoExport()))
    return provider


def with_us(side: str, provider: Any) -> AbstractContextManager[object]:
    """Instruments, unless the side is bare; gives what to measure in."""
    from otel_recfn import OtelRecordFunctionInstrumentor, record_function

    if side == BARE:
        return nullcontext()
    OtelRecordFunctionInstrumentor().instrument(tracer_provider=provider)
    return record_function("range") if side == IN_RANGE else nullcontext()


def attach(side: str) -> dict[str, float]:
    from opentelemetry import context, trace

    provider = make_provider()
    span = trace.set_span_in_context(provider.get_tracer("bench").start_span("span"))
    with with_us(side, provider):
        return {"attach": shortest_ns(lambda: context.detach(context.attach(span)), 2000)}


def get_current(side: str) -> dict[str, float]:
    from opentelemetry import context

    with with_us(side, make_provider()):
        return {"get_current": shortest_ns(context.get_current, 5000)}


def span(side: str) -> dict[str, float]:
    provider = make_provider()
    tracer = provider.get_tracer("bench")

    def work() -> None:
        with tracer.start_as_current_span("span"):
            pass

    with with_us(side, provider):
        return {"span": shortest_ns(work, 200)}


def range_in_python(side: str) -> dict[str, float]:
    from lib.empty_range import compiled_empty_range

    if side == BARE:
        made = compiled_empty_range(Path(os.environ[FOLDER]))

        def work() -> None:
            with made():
                pass

        return {"range": shortest_ns(work, 5000)}
    from otel_recfn import OtelRecordFunctionInstrumentor, record_function

    def recorded() -> None:
        with record_function("range"):
            pass

    provider = make_provider()
    with with_us(side, provider), provider.get_tracer("bench").start_as_current_span("request"):
        # Without it the buffer would be full: a range that is dropped costs half.
        flush = OtelRecordFunctionInstrumentor().flush
        return {"range": shortest_ns(recorded, 5000, before=flush)}


def around(side: str) -> AbstractContextManager[object]:
    """Instruments as the side of a program of PyTorch's wants it; gives what it runs in."""
    from otel_recfn import OtelRecordFunctionInstrumentor

    if side == BARE:
        return nullcontext()
    if side == PAIR:
        from lib.operator_loop import empty_pair, loaded_loop

        return empty_pair(loaded_loop(Path(os.environ[FOLDER])), ids=True)
    provider = make_provider(sampled=side in (INSIDE, OUTSIDE))
    instrumentor = OtelRecordFunctionInstrumentor()
    for _ in range(CYCLES if side == AGAIN else 0):
        instrumentor.instrument(tracer_provider=provider)
        instrumentor.uninstrument()
    instrumentor.instrument(tracer_provider=provider)
    if side == OUTSIDE:
        return nullcontext()
    around_all: AbstractContextManager[object] = provider.get_tracer("bench").start_as_current_span(
        "training"
    )
    return around_all


def ones(side: str) -> dict[str, float]:
    import torch

    with around(side):
        return {"ones": average_ns(lambda: torch.ones(4))}


def training_step() -> Callable[[], object]:
    """A step of forty layers that compute next to nothing."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(LAYERS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(2, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def layers(side: str) -> dict[str, float]:
    """The time of a step, and the CPU time that our thread takes for a row that it reads."""
    from otel_recfn import OtelRecordFunctionInstrumentor

    step = training_step()
    with around(side):
        results = {"layers": average_ns(step)}
        if side in (INSIDE, OUTSIDE):
            [drains] = [one for one in threading.enumerate() if one.name == "otel-recfn drain"]
            clock = time.pthread_getcpuclockid(drains.ident or 0)
            # In a short time there may be no drain.
            rows = max(1, OtelRecordFunctionInstrumentor().counters()["recorded"])
            results["drain"] = time.clock_gettime_ns(clock) / rows
    return results


PROGRAMS: dict[str, Callable[[str], dict[str, float]]] = {
    "attach": attach,
    "get_current": get_current,
    "span": span,
    "range": range_in_python,
    "ones": ones,
    "layers": layers,
}

if __name__ == "__main__":
    main()
