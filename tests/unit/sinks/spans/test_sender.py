"""Decided units on their way to processors: whole or not at all, bounded, and the program's end
doesn't wait for ever.
"""

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
from spans_harness import Gated, assert_balanced, spans_sink, write_unit

from helpers.batches import BASE_NS
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches import stage
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import sender
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.processor import OwnSpanProcessor
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.sender import DecidedUnits

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
        self.sink = spans_sink(self.provider, None, volume=Volume(1000))

    def unit(self, number: int, rows: int = ROWS) -> None:
        times = {"start_ns": BASE_NS, "end_ns": BASE_NS + 1}
        ids = range(number * ROWS + 1, number * ROWS + rows + 1)
        write_unit(self.sink, [{"event_id": make_event_id(1, one), **times} for one in ids])

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


def test_nothing_is_dropped_by_a_processor(program: Program) -> None:
    program.exporter.open.set()
    program.units()
    counters = program.finish()
    assert (counters["exported"], len(program.exporter.spans)) == (UNITS * ROWS, UNITS * ROWS)
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
    # As they were handed over.
    assert (counters["exported"], counters["failed"]) == (UNITS * ROWS, 0)
    assert_balanced(counters)


class UnitsWithoutMemory:
    """Units with no memory for putting them into the queue."""

    ranges, is_ordinary = 7, True

    @property
    def nbytes(self) -> int:
        raise MemoryError


def test_units_with_no_memory_for_the_queue_are_counted_as_lost(program: Program) -> None:
    own = OwnSpanProcessor(lambda span: None, lambda timeout_s: True)
    resolver = ProviderResolver(program.provider)
    alone = sender.Sender(resolver, SpanDelivery(own), hook=None, recorder_lost=lambda: 0)
    alone.count(recorded=7, folding=7)
    units: Any = UnitsWithoutMemory()
    alone.put(units)
    alone.close(PATIENCE_S, process_ends=False)
    counts = alone.counts()
    assert (counts["error"], counts["shutdown"], counts["folding"]) == (7, 0, 0)


def test_whole_units_are_dropped_while_the_exporter_hangs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_BYTES", 4 * ROWS * 300)
    program.sink = spans_sink(program.provider, None, volume=Volume(1000))
    program.units()
    counters = program.sink.counters()
    assert counters["dropped.queue_full"] >= (UNITS - 4) * ROWS - QUEUE
    assert counters["dropped.queue_full"] % ROWS == 0
    program.exporter.open.set()
    counters = program.finish()
    assert counters["dropped.queue_full"] + counters["exported"] == UNITS * ROWS
    lost = [
        span.attributes["recfn.dropped"]
        for span in program.exporter.spans
        if "recfn.dropped" in (span.attributes or {})
    ]
    assert sum(lost) == counters["dropped.queue_full"]  # by the spans that were made next
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
        patched.setattr(sender, "MAX_BYTES", 20)
        queue = sender.unit_queue()
    kept = list[tuple[int, DecidedUnits]]()
    dropped = 0
    for size, is_ordinary in sizes:
        units = DecidedUnits(ranges=1, nbytes=size, is_ordinary=is_ordinary)
        dropped += len(queue.put(units))
        before = list(kept)
        may_go = [one for one in kept if one[1].is_ordinary]
        may_go += [one for one in kept if not (is_ordinary or one[1].is_ordinary)]
        while may_go and sum(weight for weight, _ in kept) + size > 20:
            kept.remove(may_go.pop(0))
        if sum(weight for weight, _ in kept) + size > 20:
            kept = before  # as it is dropped itself, nothing is dropped for it
        else:
            kept.append((size, units))
    queue.end()
    left = []
    while not queue.has_ended:
        left.append(queue.next(0.0))
    assert left == [units for _, units in kept]
    assert dropped == len(sizes) - len(kept)


def test_no_unit_is_dropped_for_one_that_has_no_room_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "MAX_BYTES", 100)
    queue = sender.unit_queue()
    ordinary = DecidedUnits(ranges=1, nbytes=10, is_ordinary=True)
    unusual = DecidedUnits(ranges=1, nbytes=90)
    new = DecidedUnits(ranges=1, nbytes=50, is_ordinary=True)
    assert [queue.put(units) for units in (ordinary, unusual, new)] == [[], [], [new]]
    assert [queue.next(0.0), queue.next(0.0)] == [ordinary, unusual]


MIB = 1 << 20
VOLUMES = [
    (Volume(1), "", MIB // 4),  # which takes hundreds of units
    (Volume(50), "", MIB),
    (Volume(1000), "", 2 * MIB),
    (Volume(1000), "x" * 1000, 2 * MIB),
    (EVERY_RANGE, "x" * 1000, 2 * MIB),
]


@pytest.mark.parametrize(
    ("volume", "text", "most"), VOLUMES, ids=["1", "50", "1000", "wide", "every range, wide"]
)
def test_the_queue_holds_as_many_bytes_as_it_may(
    volume: Volume, text: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is sent: what Python accounts for, and the columns that C++ owns."""
    monkeypatch.setattr(sender, "MAX_BYTES", most)
    # Otherwise the sender's thread would take units out.
    monkeypatch.setattr(sender.Sender, "start", lambda self: None)
    # No row of a decided unit is held beside the queue.
    monkeypatch.setattr(stage, "ROWS_TO_SPARE", 0)
    sink = spans_sink(TracerProvider(shutdown_on_exit=False), None, volume=volume)

    def unit(number: int) -> None:
        called = {"start_ns": BASE_NS, "name": "operator"}
        rows = [
            {"event_id": make_event_id(1, number * ROWS + row), "end_ns": BASE_NS + row, **called}
            for row in range(1, ROWS)
        ]
        write_unit(
            sink, [row | ({"shapes": f"{text}{row['event_id']}"} if text else {}) for row in rows]
        )

    unit(0)
    others = living_units()
    number = 0
    before = traced_bytes(begin=True)
    while not sink.counters()["dropped.queue_full"]:
        number += 1
        unit(number)
    held = traced_bytes() - before
    tracemalloc.stop()
    held += native_bytes([each for each in living_units() if each not in others])
    assert 0.6 * most < held < 1.3 * most


def living_units() -> list[DecidedUnits]:
    return [each for each in gc.get_objects() if isinstance(each, DecidedUnits)]


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
