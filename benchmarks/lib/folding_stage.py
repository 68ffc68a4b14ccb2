"""What the drain thread does with batches: adding them to units, and deciding these."""

from __future__ import annotations

import random
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np
from lib.training_steps import Program, Row, linear, op
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from helpers.batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches.outcomes import span_context
from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef, empty_column
from otel_recfn.model.columns import COLUMN_TYPES, COLUMNS
from otel_recfn.model.events import NODES_PREFIX, ORDINAL_BITS, RecordScope
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.folding import Folding
from otel_recfn.sinks.spans.process_context import ProcessContext
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.request_batches import RequestBatches
from otel_recfn.sinks.spans.step_traces import StepTraces

RESOURCE = Resource({})
"""Making one of its own would cost a span 5 ms."""
SELDOM = {column.name: column for column in COLUMNS if column.is_optional}
"""Columns that most drains have nothing in."""
VOLUME = Volume(unit_budget=1000, ordinary_unit_budget=50, trace_budget=5000)


class StageCost(NamedTuple):
    """Nanoseconds a row."""

    added: float
    decided: float

    @property
    def in_all(self) -> float:
        """All of it."""
        return sum(self)


def small_units(count: int) -> list[Row]:
    """So many units of 60 to 1,100 ranges, as a service has."""
    made = Program()
    draw = random.Random(1)
    for number in range(count):
        made.run(
            op(
                "request",
                *[linear(f"layer {each % 20}") for each in range(draw.randrange(10, 184))],
            ),
            number,
        )
    return made.rows


def batches_of(rows: Sequence[Row], size: int) -> list[Batch]:
    """The rows in batches of so many, each unit below a span of its own.

    As from a drain, they share what is empty.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(row.name for row in rows), 1)}
    whole = _filled(
        event_id=[row.event_id for row in rows],
        parent=[row.parent for row in rows],
        start_ns=[row.start_ns for row in rows],
        end_ns=[row.start_ns + row.duration_ns for row in rows],
        name=[names[row.name] for row in rows],
        scope=_scopes(rows),
        root=_roots(rows),
        context=[row.unit for row in rows],
        thread=[(row.event_id >> ORDINAL_BITS) - 1 for row in rows],
    )
    table = ["", *names]
    return [_cut(whole, slice(first, first + size), table) for first in range(0, len(rows), size)]


def _scopes(rows: Sequence[Row]) -> list[RecordScope]:
    """Backward nodes are what lies directly in the ranges that autograd runs them in."""
    enclosing = {row.event_id for row in rows if row.name.startswith(NODES_PREFIX)}
    return [
        RecordScope.BACKWARD_FUNCTION if row.parent in enclosing else RecordScope.FUNCTION
        for row in rows
    ]


def _roots(rows: Sequence[Row]) -> list[int]:
    root: dict[int, int] = {}
    for row in reversed(rows):
        root[row.event_id] = root.get(row.parent, row.event_id)
    return [root[row.event_id] for row in rows]


def _filled(**given: Sequence[int]) -> dict[str, np.ndarray]:
    empty = make_batch([{}])
    count = len(given["event_id"])
    return {
        name: np.array(given[name], kind)
        if name in given
        else np.full(count, getattr(empty, name)[0], kind)
        for name, kind in COLUMN_TYPES.items()
        if name not in SELDOM
    }


def _cut(whole: dict[str, np.ndarray], rows: slice, names: Sequence[str]) -> Batch:
    columns = {name: column[rows] for name, column in whole.items()}
    units, columns["context"] = np.unique(columns["context"], return_inverse=True)
    columns["context"] = columns["context"].astype(np.uint32) + 1
    contexts = [NO_CONTEXT, *[context(0xABC, int(unit) + 1) for unit in units]]
    tracks = [MAIN_THREAD, WORKER_THREAD]
    for column in SELDOM.values():
        columns[column.name] = empty_column(column.dtype, len(columns["kind"]), column.empty)
    return replace(
        Batch(**columns, names=names, tracks=tracks, contexts=contexts),
        drained_ns=int(columns["end_ns"].max()),
    )


class ProgramSpan(ReadableSpan):
    """A span of the program's, which ends."""

    ended_ns: int | None = None

    @property
    def end_time(self) -> int | None:
        """When it ended; None before."""
        return self.ended_ns


class Stage:
    """Of one sink: no spans are made of what it decides."""

    def __init__(self) -> None:
        self._spans = spans = ProgramSpans()
        self._traces = StepTraces(None, ProcessContext(spans))
        self._folding = Folding(1000, VOLUME, spans, self._traces, RequestBatches())
        self._taken = [0, 0]

    def cost(self, batches: Sequence[Batch]) -> StageCost:
        """Of all these batches."""
        last_ns = {one: batch.drained_ns for batch in batches for one in batch.contexts}
        for batch in batches:
            self._see_spans(batch, last_ns)
            self._timed(0, partial(self._folding.add, batch, {}))
            self._timed(1, partial(self._folding.due, ()))
        self._timed(1, partial(self._folding.due, (), ends=True))
        rows = sum(len(batch) for batch in batches)
        return StageCost(*[taken / rows for taken in self._taken])

    def _see_spans(self, batch: Batch, last_ns: Mapping[SpanContextRef, int]) -> None:
        """Those that the batch has the last ranges of have ended when it is drained."""
        for one in batch.contexts[1:]:
            if self._spans.find(one.trace_id, one.span_id) is None:
                span = ProgramSpan(
                    "unit",
                    span_context(one),
                    resource=RESOURCE,
                    start_time=int(batch.start_ns.min()),
                )
                self._spans.note_parent_span(one.trace_id, one.span_id, span)
                span.ended_ns = last_ns[one] - 1

    def _timed(self, step: int, work: Any) -> Any:
        began = time.thread_time_ns()
        done = work()
        self._taken[step] += time.thread_time_ns() - began
        return done


def turns_a_batch(batches: Sequence[Batch]) -> float:
    """How often this thread has to wait for the GIL, beside a thread that computes in Python."""
    with _busy_thread():
        stage = Stage()
        began = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        stage.cost(batches)
        return (resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - began) / len(batches)


@contextmanager
def _busy_thread() -> Iterator[None]:
    over: list[None] = []

    def work() -> None:
        while not over:
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.append(None)
        thread.join()


def fastest_stage(batches: Sequence[Batch], rounds: int) -> StageCost:
    """The fastest of some rounds."""
    return min([Stage().cost(batches) for _ in range(rounds)], key=lambda cost: cost.in_all)
