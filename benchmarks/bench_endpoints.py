"""What a dead OTLP endpoint does to a training loop: its step time, how long the end takes, and
what was lost.

    python benchmarks/bench_endpoints.py [http|grpc] [rounds]

Every side trains for a while in each round, so that a busy machine meets all of them; the median of
all steps of a side is compared with that of an instrumentation without an exporter. ``end`` is the
longest ``uninstrument()``. Every operator is below a span of the program, so all of them become
spans: far more than an exporter takes, which is why some are lost in any case. PyTorch computes in
one thread, because a step in several waits for whichever of them a busy machine holds up.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from lib.command_line import IS_TINY, make_parser, sized
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from helpers.otlp_server import OtlpServer
from helpers.torch_programs import Training
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.model.counters import losses

ROUNDS = sized(3, 1)
SECONDS = sized(2.0, 0.01)
BATCH = 512
NOT_OURS, NO_EXPORTER = "not instrumented", "no exporter"
ENDPOINTS = {
    "endpoint that answers": "ok",
    "connection refused": "refuse",
    "hangs": "hang",
    "answers with errors": "error",
}
if IS_TINY:  # an exporter tries again for seconds if the others fail
    ENDPOINTS = {"endpoint that answers": "ok"}


class Side:
    """Steps of one kind of run, the longest end, and counts."""

    def __init__(self) -> None:
        self.steps_ms: list[float] = []
        self.end_s = 0.0
        self.counts: Counter[str] = Counter()


def main() -> None:
    """Every side once in each round."""
    options = command_line()
    protocol, rounds = options.protocol, options.rounds
    logging.disable(logging.ERROR)  # the exporters say at each attempt that they failed
    torch.set_num_threads(1)
    training = Training(BATCH)
    training.step()
    sides = {name: Side() for name in (NOT_OURS, NO_EXPORTER, *ENDPOINTS)}
    for _ in range(rounds):
        train(training, sides[NOT_OURS])
        observe(training, sides[NO_EXPORTER], None)
        for name, mode in ENDPOINTS.items():
            with exporter_to(protocol, mode) as exporter:
                observe(training, sides[name], exporter)
    report(sides, protocol)


def command_line() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("protocol", nargs="?", choices=("http", "grpc"), default="http")
    parser.add_argument(
        "rounds", nargs="?", type=int, default=ROUNDS, help="how many rounds; %(default)s"
    )
    return parser.parse_args()


@contextmanager
def exporter_to(protocol: str, mode: str) -> Iterator[SpanExporter]:
    with OtlpServer(protocol, mode) as server:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter as Grpc,
            )

            yield Grpc(endpoint=server.endpoint, insecure=True)
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
                OTLPSpanExporter as Http,
            )

            yield Http(endpoint=server.endpoint)


def observe(training: Training, side: Side, exporter: SpanExporter | None) -> None:
    """Train with operators as spans below a span of the program."""
    provider = TracerProvider(shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    with provider.get_tracer("bench").start_as_current_span("training"):
        train(training, side)
    began = time.perf_counter()
    instrumentor.uninstrument()
    side.end_s = max(side.end_s, time.perf_counter() - began)
    side.counts.update(instrumentor.counters())
    if exporter is not None:
        exporter.shutdown()


def train(training: Training, side: Side) -> None:
    end = time.perf_counter() + SECONDS
    while not side.steps_ms or time.perf_counter() < end:
        began = time.perf_counter()
        training.step()
        side.steps_ms.append((time.perf_counter() - began) * 1e3)


def report(sides: dict[str, Side], protocol: str) -> None:
    """A line per side; ``lost`` is everything that was recorded and not exported."""
    base = statistics.median(sides[NO_EXPORTER].steps_ms)
    print(f"OTLP over {protocol}")
    print(
        f"{'':<28}{'step ms':>9}{'ratio':>8}{'steps':>7}{'end s':>7}"
        f"{'recorded':>10}{'exported':>10}{'lost':>10}"
    )
    for name, side in sides.items():
        step = statistics.median(side.steps_ms)
        recorded = side.counts["recorded"] + side.counts["added"]
        exported = side.counts["exported"]
        counts = (recorded, exported, side.counts["waiting"] + sum(losses(side.counts).values()))
        numbers = "".join(f"{count:>10,}" for count in counts)
        print(
            f"{name:<28}{step:>9.2f}{step / base:>8.3f}"
            f"{len(side.steps_ms):>7}{side.end_s:>7.2f}{numbers}"
        )


if __name__ == "__main__":
    main()
