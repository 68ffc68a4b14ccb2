"""What an encoded span costs, natively from columns and by the official encoder from the SDK's
spans, with its bytes.

Also how long a batch takes the GIL, and how much of its progress a Python thread makes meanwhile,
against what it makes beside a thread that computes as much but never takes the GIL. They take short
turns, and each is compared with the one before it, so that a machine which is slower for a while is
so for both.

python benchmarks/bench_otlp.py [--spans N] [--seconds S]
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench_spans import sample_batch
from lib.command_line import make_parser, sized
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider

from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.batches.stage import Stage
from otel_recfn.sinks.otlp import encoding
from otel_recfn.sinks.otlp.encoding import OtlpMapper, as_encoded
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.span_target import SpanTarget

SPANS = sized(8_000, 100)
SECONDS = sized(2.0, 0.01)
TURN_S = sized(0.1, 0.01)
PROGRESS_TURNS = 10
"""Measuring progress takes so many times longer than one of the other measurements."""


def sample_plan(spans: int) -> SpanPlan:
    """Operators below a span of the program, with the attributes that they have by default."""
    batch = sample_batch()
    batch = batch.take(slice(min(spans, len(batch))))
    return Stage(0).plan(batch)[0]


def best_ns(
    work: Callable[[], object], seconds: float, clock: Callable[[], int] = time.perf_counter_ns
) -> float:
    """The shortest of the runs that fit into the time."""
    best = float("inf")
    end = time.monotonic() + seconds
    while best == float("inf") or time.monotonic() < end:
        start = clock()
        work()
        best = min(best, clock() - start)
    return best


class Counting(threading.Thread):
    """Python that counts, and how far it comes in a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count, self._ended = 0, False

    def run(self) -> None:
        while not self._ended:
            for _ in range(1000):
                pass
            self.count += 1

    def end(self) -> None:
        self._ended = True
        self.join()


def progress(counting: Counting, work_meanwhile: Callable[[], object], seconds: float) -> float:
    """How far a Python thread comes in a second while another one works at one thing."""
    began = time.monotonic()
    count = counting.count
    while time.monotonic() < began + seconds:
        work_meanwhile()
    return (counting.count - count) / (time.monotonic() - began)


def progress_shares(work: Callable[[], object], seconds: float) -> list[float]:
    """The shares of its progress that a Python thread keeps, one of each pair of turns."""
    block = bytes(1 << 20)
    counting = Counting()
    counting.start()
    end = time.monotonic() + seconds
    shares = list[float]()
    while len(shares) < 2 or time.monotonic() < end:
        alone = progress(counting, lambda: hashlib.sha256(block), TURN_S)
        if alone:  # on a busy machine it may get no turn
            shares.append(progress(counting, work, TURN_S) / alone)
    counting.end()
    return shares


def gil_us(mapper: OtlpMapper, plan: SpanPlan, seconds: float) -> float:
    """Processor time with the GIL for a batch: that of the Python around the encoder, and of its
    reading of the columns.

    Its look at each row comes on top, 5 ns a span.
    """
    native, kept = encoding._native, []

    def keep(*given: Any, **named: Any) -> Any:
        kept[:] = [native.encode_otlp_spans(*given, **named)]
        return kept[0]

    encoding._native = SimpleNamespace(encode_otlp_spans=keep)
    try:
        mapper.spans(plan)
        encoding._native = SimpleNamespace(encode_otlp_spans=lambda *_, **__: kept[0])
        around = best_ns(lambda: mapper.spans(plan), seconds, time.thread_time_ns)
    finally:
        encoding._native = native
    nothing = plan.part(slice(0))
    return (around + best_ns(lambda: mapper.spans(nothing), seconds, time.thread_time_ns)) / 1000


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--spans", type=int, default=SPANS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    options = parser.parse_args()
    plan = sample_plan(options.spans)
    target = ProviderResolver(TracerProvider(shutdown_on_exit=False)).resolve()
    assert isinstance(target, SpanTarget)
    count = len(plan.row)
    ours = OtlpMapper(target)
    theirs = SpanMapper(target)
    made = theirs.spans(plan)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "ours, from columns": (lambda: ours.spans(plan), len(ours.spans(plan).data)),
        "ours, from SDK spans": (
            lambda: as_encoded(theirs.spans(plan)),
            len(as_encoded(made).data),
        ),
        "SDK spans alone": (lambda: theirs.spans(plan), 0),
        "encode_spans of them": (
            lambda: encode_spans(made).SerializeToString(),
            len(encode_spans(made).SerializeToString()),
        ),
    }
    cost = {name: best_ns(work, options.seconds) / count for name, (work, _) in ways.items()}
    for name, (_, size) in ways.items():
        print(f"{name:<24} {cost[name]:9.0f} ns a span  {size / count:6.0f} bytes a span")
    official = cost["encode_spans of them"]
    print(
        f"ours is {official / cost['ours, from columns']:.0f} times faster than encode_spans",
        end="",
    )
    print(
        f", {(official + cost['SDK spans alone']) / cost['ours, from columns']:.0f} times than"
        " making and encoding spans"
    )
    print(
        f"the GIL is held for {gil_us(ours, plan, options.seconds):.0f} us of a batch of {count:,}"
        " spans"
    )
    for name in ("ours, from columns", "encode_spans of them"):
        shares = progress_shares(ways[name][0], PROGRESS_TURNS * options.seconds)
        low, median, high = statistics.quantiles(shares, n=4)
        print(
            f"a Python thread beside {name}: {median:.1%} of its progress beside work without"
            " the GIL",
            end="",
        )
        print(
            f" (median of {len(shares)} pairs of turns; half of them between {low:.1%} and"
            f" {high:.1%})"
        )


if __name__ == "__main__":
    main()
