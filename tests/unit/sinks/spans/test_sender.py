"""Decided units on their way to processors: whole or not at all, bounded, and the program's end doesn't wait for ever."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from spans_harness import Gated, assert_balanced

from batches import BASE_NS, context, make_batch
from otel_recfn.batches import merging
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import sender
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sender import DecidedUnits
from otel_recfn.sinks.spans.sink import SpansSink
from timeouts import PATIENCE_S

QUEUE, CHUNK = 2048, 512
UNITS, ROWS = 30, 300


class Program:
    """Units that end one after the other."""

    def __init__(self, exporter: Gated) -> None:
        self.exporter = exporter
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.processor = BatchSpanProcessor(
            exporter, max_queue_size=QUEUE, schedule_delay_millis=3_600_000
        )
        self.provider.add_span_processor(self.processor)
        self.sink = SpansSink(self.provider, None, volume=Volume(1000))

    def unit(self, number: int, rows: int = ROWS) -> None:
        place = {"context": context(1, number + 1), "start_ns": BASE_NS, "end_ns": BASE_NS + 1}
        ids = range(number * ROWS + 1, number * ROWS + rows + 1)
        self.sink.write(make_batch([{"event_id": make_event_id(1, one), **place} for one in ids]))
        with self.sink._lock:
            self.sink._decide(rests=True)

    def units(self) -> None:
        for number in range(UNITS):
            self.unit(number)

    def finish(self) -> dict[str, int]:
        self.sink.close(PATIENCE_S)
        return dict(self.sink.counters())


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program(Gated())
    yield program
    program.exporter.open.set()
    program.sink.close(PATIENCE_S)
    program.provider.shutdown()


def test_the_processors_thread_exports_and_nothing_is_dropped(program: Program) -> None:
    program.exporter.open.set()
    program.units()
    counters = program.finish()
    assert (counters["exported"], len(program.exporter.spans)) == (UNITS * ROWS, UNITS * ROWS)
    assert any("OtelBatchSpan" in name for name in program.exporter.threads)
    assert_balanced(counters)


def test_rows_are_folded_and_half_of_the_queue_is_left_to_the_program_while_an_exporter_hangs(
    program: Program,
) -> None:
    program.units()
    assert program.exporter.began.wait(PATIENCE_S)
    own = QUEUE // 2 - CHUNK  # what the exporter has in hand is in the queue no more
    for _ in range(own):
        program.provider.get_tracer("program").start_span("own").end()
    assert program.sink.counters()["recorded"] == UNITS * ROWS
    program.exporter.open.set()
    assert program.finish()["exported"] == UNITS * ROWS
    program.processor.force_flush()
    assert sum(span.name == "own" for span in program.exporter.spans) == own


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, ValueError("no")])
def test_an_exporter_that_fails_holds_nobody_up(
    program: Program, result: SpanExportResult | Exception
) -> None:
    program.exporter.result = result
    program.exporter.open.set()
    program.units()
    counters = program.finish()
    assert (counters["exported"], counters["failed"]) == (0, UNITS * ROWS)
    assert_balanced(counters)


def test_whole_units_are_dropped_while_the_exporter_hangs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MOST_BYTES", 4 * ROWS * 300)
    program.sink = SpansSink(program.provider, None, volume=Volume(1000))
    program.units()
    counters = program.sink.counters()
    assert counters["dropped.queue_full"] >= (UNITS - 4) * ROWS - QUEUE
    assert counters["dropped.queue_full"] % ROWS == 0
    program.exporter.open.set()
    counters = program.finish()
    assert counters["dropped.queue_full"] + counters["exported"] == UNITS * ROWS
    told = [
        span.attributes["recfn.dropped"]
        for span in program.exporter.spans
        if "recfn.dropped" in (span.attributes or {})
    ]
    assert sum(told) == counters["dropped.queue_full"]  # by the spans that were made next
    by_unit = groupby(sorted(span.parent.span_id for span in program.exporter.spans if span.parent))
    assert all(len(list(spans)) == ROWS for _, spans in by_unit)
    assert_balanced(counters)


def test_a_flush_waits_for_what_came_before_it(program: Program) -> None:
    program.unit(0)
    assert not program.sink.flush(0.0)
    program.exporter.open.set()
    assert program.sink.flush(PATIENCE_S)
    assert len(program.exporter.spans) == ROWS


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=30))
def test_the_queue_keeps_what_is_unusual_longest(sizes: list[tuple[int, bool]]) -> None:
    """Against a list that is looked through."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sender, "MOST_BYTES", 20)
        queue = sender.unit_queue()
    kept, dropped = list[tuple[int, DecidedUnits]](), 0
    for size, is_ordinary in sizes:
        units = DecidedUnits(ranges=1, nbytes=size, is_ordinary=is_ordinary)
        dropped += len(queue.put(units))
        kept.append((size, units))
        while len(kept) > 1 and sum(weight for weight, _ in kept) > 20:
            kept.remove(next((one for one in kept if one[1].is_ordinary), kept[0]))
    queue.end()
    left = []
    while not queue.has_ended:
        left.append(queue.next(0.0))
    assert left == [units for _, units in kept]
    assert dropped == len(sizes) - len(kept)


VOLUMES = [
    (Volume(1), ""),
    (Volume(50), ""),
    (Volume(1000), ""),
    (Volume(1000), "x" * 1000),
    (EVERY_RANGE, "x" * 1000),
]


@pytest.mark.parametrize(
    ("volume", "text"), VOLUMES, ids=["1", "50", "1000", "wide", "every range, wide"]
)
def test_the_queue_holds_as_many_bytes_as_it_may(
    volume: Volume, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is sent: what Python accounts for, and the columns that C++ owns."""
    most = 2 << 20
    monkeypatch.setattr(sender, "MOST_BYTES", most)
    monkeypatch.setattr(sender.Sender, "start", lambda self: None)
    monkeypatch.setattr(
        merging, "ROWS_TO_SPARE", 0
    )  # no row of a decided unit is held beside the queue
    sink = SpansSink(TracerProvider(shutdown_on_exit=False), None, volume=volume)

    def unit(number: int) -> None:
        place = {"context": context(1, number + 1), "start_ns": BASE_NS, "name": "operator"}
        rows = [
            {"event_id": make_event_id(1, number * ROWS + row), "end_ns": BASE_NS + row, **place}
            for row in range(1, ROWS)
        ]
        sink.write(
            make_batch(
                [row | ({"shapes": f"{text}{row['event_id']}"} if text else {}) for row in rows]
            )
        )
        sink._decide(rests=True)

    unit(0)
    number, before = 0, traced_bytes(begin=True)
    while not sink.counters()["dropped.queue_full"]:
        number += 1
        unit(number)
    held = traced_bytes() - before
    tracemalloc.stop()
    held += native_bytes([each for each, _ in sink._sender._queue._waiting])
    assert 0.6 * most < held < 1.3 * most


def traced_bytes(begin: bool = False) -> int:
    if begin:
        tracemalloc.start()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def native_bytes(units: Sequence[DecidedUnits]) -> int:
    """Of columns that C++ owns, which Python accounts for by their objects alone."""
    sizes = {}
    for each in units:
        assert each.plan is not None
        for table in (*each.plan, *vars(each.plan.batch).values(), *(each.decided or ())):
            owner: Any = table
            while isinstance(owner, np.ndarray | memoryview):
                owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
            if type(owner).__name__ == "Column":
                sizes[id(owner)] = memoryview(owner).nbytes
    return sum(sizes.values())
