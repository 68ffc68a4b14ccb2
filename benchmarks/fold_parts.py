"""What each part of folding costs a row, native and in Python: the plan, the call-path tree of a capture, the metrics."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench_metrics import in_python as metrics_in_python
from opentelemetry.trace import SpanContext

from otel_recfn.batches.links.choice import links_maker
from otel_recfn.batches.rows.choice import rows_planner
from otel_recfn.batches.span_plan import fates_of, plan_spans
from otel_recfn.model.batch import Batch
from otel_recfn.model.tables import SpanContextRef
from otel_recfn.sinks.metrics.durations import Durations
from otel_recfn.store.tree_of_rows import tree_of_rows
from otel_recfn.support.twins import VARIABLE

Part = Callable[[Sequence[Batch]], None]


def plan(batches: Sequence[Batch]) -> None:
    links, planner = links_maker()(), rows_planner()
    for batch in batches:
        plan_spans(planner, batch, fates_of(planner, batch), links.match(batch), _span_of, lambda root: None)


def tree(batches: Sequence[Batch]) -> None:
    for batch in batches:
        tree_of_rows(batch)


def metrics(batches: Sequence[Batch]) -> None:
    durations = Durations()
    for batch in batches:
        durations.add(batch, None)


def ns_a_row(part: Part, batches: Sequence[Batch], rounds: int, *, native: bool = True) -> float:
    """The processor time of the fastest of some rounds."""
    taken = []
    with nullcontext() if native else _in_python():
        for _ in range(rounds):
            began = time.thread_time_ns()
            part(batches)
            taken.append(time.thread_time_ns() - began)
    return min(taken) / sum(len(batch) for batch in batches)


@contextmanager
def _in_python() -> Iterator[None]:
    """Without the native parts."""
    with patch.dict(os.environ, {VARIABLE: "python"}), metrics_in_python():
        yield


def _span_of(one: SpanContextRef) -> SpanContext:
    return SpanContext(one.trace_id, one.span_id, False)
