"""What each part of folding costs a row: the plan, the call-path tree of a capture, the metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from opentelemetry.trace import SpanContext

from otel_recfn.batches.links import LinkFinder
from otel_recfn.batches.span_plan import fates_of, plan_spans
from otel_recfn.model.batch import Batch
from otel_recfn.model.tables import SpanContextRef
from otel_recfn.sinks.metrics.durations import Durations
from otel_recfn.store.tree_of_rows import tree_of_rows

Part = Callable[[Sequence[Batch]], None]


def plan(batches: Sequence[Batch]) -> None:
    links = LinkFinder()
    for batch in batches:
        plan_spans(batch, fates_of(batch), links.match(batch), _span_of, lambda root: None)


def tree(batches: Sequence[Batch]) -> None:
    for batch in batches:
        tree_of_rows(batch)


def metrics(batches: Sequence[Batch]) -> None:
    durations = Durations()
    for batch in batches:
        durations.add(batch, None)


def ns_a_row(part: Part, batches: Sequence[Batch], rounds: int) -> float:
    """The processor time of the fastest of some rounds."""
    taken = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        part(batches)
        taken.append(time.thread_time_ns() - began)
    return min(taken) / sum(len(batch) for batch in batches)


def _span_of(one: SpanContextRef) -> SpanContext:
    return SpanContext(one.trace_id, one.span_id, False)
