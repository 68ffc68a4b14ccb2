"""What a row costs elsewhere: in the call-path tree of a capture, in the metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_recfn.batches.build_tree import build_tree
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.metrics.sink import MetricsSink

Part = Callable[[Sequence[Batch]], None]


def tree(batches: Sequence[Batch]) -> None:
    for batch in batches:
        build_tree(batch)


def metrics(batches: Sequence[Batch]) -> None:
    sink = MetricsSink(MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False))
    for batch in batches:
        sink.write(batch)


def ns_a_row(part: Part, batches: Sequence[Batch], rounds: int) -> float:
    """The processor time of the fastest of some rounds."""
    taken = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        part(batches)
        taken.append(time.thread_time_ns() - began)
    return min(taken) / sum(len(batch) for batch in batches)
