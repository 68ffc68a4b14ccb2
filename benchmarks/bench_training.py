"""What observing does to a training loop: milliseconds a step, beside none, the cheapest observer
there can be, and Kineto.

    python benchmarks/bench_training.py [rounds]

A tiny model, whose step is over a thousand operators that compute next to nothing, so that the cost
of observing shows as nowhere else. Every side trains for a second in each round, after half a
second that does not count, every other round in the opposite order; the median of all its steps
counts, and how far the two sides that record nothing are apart says how far to believe it. "x
unsampled" is the median of the rounds, each of which divides by its own turn of that side, since a
machine that others use may be half as fast for some seconds. PyTorch computes in one thread.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from lib.command_line import read_number, sized

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from lib.compilers import build_folder
from lib.no_export import NoExport
from lib.operator_loop import empty_pair, loaded_loop
from lib.otlp_discarding import server
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch.profiler import ProfilerActivity, profile

from helpers.torch_programs import Training
from otel_recfn import OtelRecordFunctionInstrumentor, RecordScope

ROUNDS = sized(5, 1)
SECONDS = sized(1.0, 0.0)
WARM_SECONDS = sized(0.5, 0.0)
LONG_SECONDS = sized(12.0, 0.0)
NONE, UNSAMPLED, OTLP, OTLP_MODULES = (
    "not instrumented",
    "ours, unsampled spans",
    "ours, OTLP",
    "ours, OTLP, modules",
)
UNSAMPLED_MODULES = "ours, unsampled, modules"
OWN_EXPORTER = "ours, OTLP, span_exporter"

Observer = Callable[[], AbstractContextManager[Any]]
Turns = dict[str, list[list[float]]]
"""Milliseconds of each step of each side's turns."""


def main() -> None:
    """Every side once in each round."""
    rounds = read_number(__doc__, "rounds", ROUNDS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with build_folder() as folder, server() as endpoint:
        loop = loaded_loop(folder)
        sides = observers(loop, folder, endpoint)
        training = Training()
        operators = operators_of(training)
        report(in_turns(training, sides, rounds, WARM_SECONDS, SECONDS), operators)
        print()
        longer = {
            name: sides[name]
            for name in (NONE, UNSAMPLED, UNSAMPLED_MODULES, OTLP, OWN_EXPORTER, OTLP_MODULES)
        }
        report(in_turns(training, longer, (rounds + 1) // 2, 0.0, LONG_SECONDS), operators)


def in_turns(
    training: Training, sides: dict[str, Observer], rounds: int, warm_seconds: float, seconds: float
) -> Turns:
    """A turn for each side in each round."""
    turns: Turns = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            with sides[name]() as tracer:
                steps(training, warm_seconds, tracer)
                turns[name].append(steps(training, seconds, tracer))
    return turns


def observers(loop: Any, folder: Path, endpoint: str) -> dict[str, Observer]:
    """``scopes`` keeps modules and ranges out where a side is compared with others that have
    none.
    """
    operators = {"scopes": {RecordScope.FUNCTION, RecordScope.BACKWARD_FUNCTION}, "modules": False}
    exporter = partial(OTLPSpanExporter, endpoint=endpoint, insecure=True)
    return {
        NONE: nullcontext,
        "enabled=False": lambda: instrumented(enabled=False),
        "empty callback pair": lambda: empty_pair(loop, ids=True),
        UNSAMPLED: lambda: instrumented(ALWAYS_OFF, **operators),
        UNSAMPLED_MODULES: lambda: instrumented(ALWAYS_OFF),
        OTLP: lambda: instrumented(None, exporter(), **operators),
        OWN_EXPORTER: lambda: instrumented(None, exporter(), span_exporter=exporter(), **operators),
        OTLP_MODULES: lambda: instrumented(None, exporter()),
        "ours, Chrome trace": lambda: instrumented(
            ALWAYS_OFF, chrome_trace=folder / "trace.json.gz", **operators
        ),
        "ours, Chrome, modules": lambda: instrumented(
            ALWAYS_OFF, chrome_trace=folder / "trace.json.gz"
        ),
        "ours, Chrome, each a span": lambda: instrumented(
            None, chrome_trace=folder / "trace.json.gz", span_budget=None
        ),
        "Kineto": lambda: profile(activities=[ProfilerActivity.CPU]),
    }


@contextmanager
def instrumented(
    sampler: Any = None, exporter: SpanExporter | None = None, **settings: Any
) -> Iterator[trace.Tracer]:
    """With a span of the program around the training, and a tracer for one around each step."""
    provider = TracerProvider(shutdown_on_exit=False, **({"sampler": sampler} if sampler else {}))
    provider.add_span_processor(BatchSpanProcessor(exporter or NoExport()))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider, **settings)
    try:
        tracer = provider.get_tracer("bench")
        with tracer.start_as_current_span("training"):
            yield tracer
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


def steps(training: Training, seconds: float, tracer: Any) -> list[float]:
    """Milliseconds of each step, at least of one, in a span if there is a tracer."""
    step_span = (
        partial(tracer.start_as_current_span, "step")
        if isinstance(tracer, trace.Tracer)
        else nullcontext
    )
    taken = list[float]()
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        began = time.perf_counter()
        with step_span():
            training.step()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def operators_of(training: Training) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as once:
        training.step()
    return len(once.events())


def report(turns: Turns, operators: int) -> None:
    steps_ms = {
        name: [step for turn in side_turns for step in turn] for name, side_turns in turns.items()
    }
    base = statistics.median(steps_ms[NONE])
    base_mean = statistics.fmean(steps_ms[NONE])
    title = f"a step of {operators:,} operators"
    print(
        f"{title:<30}{'ms':>8}{'ratio':>8}{'ns/operator':>13}"
        f"{'mean':>8}{'ratio':>8}{'x unsampled':>13}{'steps':>8}"
    )
    for name, taken in steps_ms.items():
        step = statistics.median(taken)
        mean = statistics.fmean(taken)
        ns = (step - base) / operators * 1e6
        to_unsampled = by_rounds(turns[name], turns[UNSAMPLED])
        medians = f"{step:>8.3f}{step / base:>8.3f}{ns:>13,.0f}"
        means = f"{mean:>8.3f}{mean / base_mean:>8.3f}"
        print(f"{name:<30}{medians}{means}{to_unsampled:>13.3f}{len(taken):>8,}")


def by_rounds(side: list[list[float]], other: list[list[float]]) -> float:
    """The ratio of two sides' medians in the same round; the median of all rounds."""
    ratios = [
        statistics.median(mine) / statistics.median(theirs)
        for mine, theirs in zip(side, other, strict=True)
    ]
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
