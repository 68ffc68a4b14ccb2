"""Folded units as spans: all ranges are there, as themselves or in sums; a flush sends what has ended."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode
from spans_harness import Harness, assert_balanced

from batches import BASE_NS, MAIN_THREAD, context, make_batch
from example_counts import examples
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.events import EventFlag, EventSource, make_event_id
from otel_recfn.sinks.spans import folding
from otel_recfn.sinks.spans.budgets import Volume
from timeouts import PATIENCE_S

pytestmark = pytest.mark.one_python
FOLDED, OF_UNIT = "recfn.folded.count", "recfn.unit.folded.count"
LATER_NS = 1 << 62
ENDED_NS = BASE_NS + 1_000_000
"""When units end whose duration doesn't matter."""


DEFAULT = Volume(1000, 50, 5000)


class Units(Harness):
    """Spans of the program, and ranges below them."""

    def __init__(self, volume: Volume = DEFAULT) -> None:
        super().__init__(volume=volume)
        self.tracer = self.provider.get_tracer("program")
        self.ranges = 0

    def start(
        self, name: str = "request", parent: trace.Span | None = None, start: int = BASE_NS
    ) -> trace.Span:
        above = trace.set_span_in_context(parent) if parent is not None else None
        span = self.tracer.start_span(name, above, start_time=start)
        of_span = span.get_span_context()
        self.sink.saw(of_span.trace_id, of_span.span_id, span)
        return span

    def rows(self, span: trace.Span, *shape: tuple[str, int]) -> list[dict[str, Any]]:
        """Ranges in each other, by name and microseconds, the innermost first."""
        of_span = span.get_span_context()
        above, root, rows = 0, 0, []
        for name, duration_us in shape:
            self.ranges += 1
            event_id = make_event_id(MAIN_THREAD.number, self.ranges)
            root = root or event_id
            times = {
                "start_ns": BASE_NS + self.ranges,
                "end_ns": BASE_NS + self.ranges + duration_us * 1000,
            }
            place = {"event_id": event_id, "parent": above, "root": root, "name": name}
            rows.append({**place, **times, "context": context(of_span.trace_id, of_span.span_id)})
            above = event_id
        return rows[::-1]

    def drained(
        self, rows: Sequence[dict[str, Any]], drained_ns: int = LATER_NS, **more: Any
    ) -> None:
        self.came(replace(make_batch(rows, **more), drained_ns=drained_ns))

    def flush(self) -> None:
        assert self.sink.flush(PATIENCE_S)

    def unit(
        self,
        rows: int,
        name: str = "request",
        took_us: int = 1000,
        parent: trace.Span | None = None,
        names: int = 7,
    ) -> None:
        """A unit of so many ranges, which ends."""
        span = self.start(name, parent)
        ranges = [
            row
            for number in range(rows)
            for row in self.rows(span, (f"op {number % names}", 10 + number % 50))
        ]
        span.end(BASE_NS + took_us * 1000)
        self.drained(ranges)

    def ours(self) -> list[ReadableSpan]:
        """The spans of ours that came."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.instrumentation_scope.name == "otel_recfn"
        ]


def ranges_told(spans: Sequence[ReadableSpan]) -> int:
    """How many ranges these spans stand for."""
    own = [span for span in spans if "recfn.scope" in span.attributes]
    return len(own) + sum(span.attributes.get(OF_UNIT, 0) for span in spans)


def test_a_unit_is_sent_when_its_span_has_ended_and_was_drained() -> None:
    units = Units()
    span = units.start()
    units.drained(units.rows(span, ("a", 5)), drained_ns=BASE_NS)
    assert not units.ours()
    ended_ns = BASE_NS + 10_000
    span.end(ended_ns)
    units.drained(units.rows(span, ("b", 5)), drained_ns=ended_ns)
    assert not units.ours()
    units.drained(units.rows(span, ("c", 5)), drained_ns=ended_ns + 1)
    assert sorted(one.name for one in units.ours()) == ["a", "b", "c"]


def test_a_unit_waits_for_what_is_open_in_it() -> None:
    units = Units()
    span = units.start()
    inner, outer = units.rows(span, ("outer", 9), ("inner", 5))
    announced = {key: outer[key] for key in ("event_id", "name", "start_ns", "context")}
    span.end(ENDED_NS)
    units.drained([inner], opened=[announced])
    assert not units.ours()
    units.drained([outer])
    assert [one.name for one in units.ours()] == ["outer", "inner"]


@given(
    shapes=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=6),
        max_size=12,
    ),
    volume=st.sampled_from([Volume(1), Volume(3), Volume(8, 4, 10), Volume(100)]),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_all_ranges_are_told_however_they_are_cut(
    shapes: list[list[tuple[str, int]]], volume: Volume, cuts: list[int]
) -> None:
    told = []
    for edges in ((), sorted(cuts)):
        units = Units(volume)
        span = units.start()
        rows = []
        for shape in shapes:
            nested = sorted(shape, key=lambda one: -one[1])
            rows += units.rows(span, *nested)
        span.end(ENDED_NS)
        bounds = [0, *[edge for edge in edges if edge < len(rows)], len(rows)]
        for first, last in itertools.pairwise(bounds):
            units.drained(rows[first:last], drained_ns=0)
        units.drained([])
        spans = units.ours()
        assert ranges_told(spans) == len(rows)
        assert_balanced(units.sink.counters())
        there = {one.context.span_id for one in spans} | {span.get_span_context().span_id}
        assert all(one.parent.span_id in there for one in spans)
        assert len(spans) <= volume.of_unit
        assert all(
            one.attributes.get("recfn.folded.duration_ns", 0) <= one.end_time - one.start_time
            for one in spans
        )
        ids = {one.context.span_id: one.name for one in spans}
        told.append(
            Counter(
                (
                    one.name,
                    one.end_time - one.start_time,
                    ids.get(one.parent.span_id),
                    str(one.attributes),
                )
                for one in spans
            )
        )
        units.close()
    assert told[0] == told[1]


def test_a_summary_is_as_long_as_its_ranges_and_stays_in_its_parent() -> None:
    units = Units(Volume(4))
    span = units.start()
    rows = []
    for _ in range(14):
        rows += units.rows(span, ("mm", 3))
    span.end(BASE_NS + 60_000)
    units.drained(rows)
    summary = next(one for one in units.ours() if one.name == "mm (folded)")
    count = summary.attributes["aggregation.span_count"]
    assert (
        summary.end_time - summary.start_time
        == summary.attributes["aggregation.duration_total_ns"]
        == count * 3000
    )
    assert BASE_NS <= summary.start_time <= summary.end_time <= BASE_NS + 60_000
    assert summary.attributes[OF_UNIT] == count
    assert FOLDED not in summary.attributes
    assert summary.attributes["recfn.unit.top"] == [f"mm: {count} x, {count * 0.003:.3f} ms"]


def test_a_call_that_takes_much_longer_stands_beside_the_sum_of_the_others() -> None:
    units = Units(Volume(50))
    span, rows = units.start(), []
    for number in range(20):
        took_us = 10_000 if number else 500_000
        inside = [(f"op {depth}", took_us - depth) for depth in range(1, 4)]
        rows += units.rows(span, ("nn.Module: Model_0", took_us), *inside)
        rows[-1]["source"] = EventSource.MODULE
    span.end(BASE_NS + 700_000_000)
    units.drained(rows)
    (longest,) = [one for one in units.ours() if one.name == "Model"]
    (others,) = [one for one in units.ours() if one.name == "Model (folded)"]
    assert longest.end_time - longest.start_time == 500_000_000
    assert (
        longest.attributes["recfn.module.class"]
        == others.attributes["recfn.module.class"]
        == "Model"
    )
    assert (
        others.attributes["aggregation.span_count"],
        others.attributes["aggregation.duration_max_ns"],
    ) == (19, 10_000_000)


def test_ordinary_units_are_short_and_unusual_ones_come_in_full() -> None:
    units = Units(Volume(1000, 10, 5000))
    sizes = []
    for took_us in [1000] * 5 + [5000, 1000]:
        units.exporter.clear()
        units.unit(300, took_us=took_us)
        sizes.append(len(units.ours()))
    assert sizes == [300, 300, 300, 7, 7, 300, 7]  # seven names


@pytest.mark.parametrize("how", ["status", "range"])
def test_a_unit_that_failed_comes_in_full(how: str) -> None:
    units = Units(Volume(1000, 10, 5000))
    for _ in range(4):
        units.unit(100)
    units.exporter.clear()
    span = units.start()
    rows = [row for _ in range(100) for row in units.rows(span, ("op", 1))]
    if how == "status":
        span.set_status(Status(StatusCode.ERROR))
    else:
        rows[50] |= {"flags": EventFlag.ERROR, "error": "ValueError: no"}
    span.end(BASE_NS + 1_000_000)
    units.drained(rows)
    assert len(units.ours()) == 100


@pytest.mark.parametrize("bound", ["MAX_UNITS", "MAX_KEPT"])
def test_of_units_that_stay_open_those_are_told_that_nothing_came_to_for_long(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(folding, bound, 5 if bound == "MAX_UNITS" else 50)
    units = Units(Volume(10))
    spans = [units.start(f"connection {number}") for number in range(20)]
    for span in spans:
        units.drained([row for _ in range(10) for row in units.rows(span, ("op", 5))])
    assert_balanced(units.sink.counters(), waiting=50)
    units.drained(units.rows(spans[0], ("again", 5)))
    told = units.ours()
    assert ranges_told([*told, *units.close()]) == 201
    assert_balanced(units.sink.counters())


def test_a_trace_of_many_units_stays_small() -> None:
    units = Units(Volume(100, 20, 400))
    epoch = units.start("epoch")
    for _ in range(300):
        units.unit(150, "step", parent=epoch, names=40)
    assert len(units.ours()) <= 400 // 2 + 300
    assert ranges_told(units.ours()) == 300 * 150
    slow = len(units.ours())
    units.unit(150, "step", took_us=2500, parent=epoch, names=40)
    assert len(units.ours()) - slow >= 30


def test_a_long_unit_is_sent_in_parts_below_the_open_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_ROWS_OF_A_UNIT", 50)
    units = Units(Volume(10))
    span = units.start()
    rows = [row for _ in range(120) for row in units.rows(span, ("epoch", 100_000), ("op", 1))[:1]]
    outer = units.rows(span, ("epoch", 100_000))[0]
    rows = [{**row, "parent": outer["event_id"], "root": outer["event_id"]} for row in rows]
    units.drained(
        rows, opened=[{key: outer[key] for key in ("event_id", "name", "start_ns", "context")}]
    )
    assert {one.parent.span_id for one in units.ours() if one.name == "op"} != {
        span.get_span_context().span_id
    }
    span.end(ENDED_NS)
    units.drained([outer])
    spans = units.ours()
    there = {one.context.span_id for one in spans} | {span.get_span_context().span_id}
    assert all(one.parent.span_id in there for one in spans)
    assert ranges_told(spans) == 121


def test_what_is_shorter_than_a_thousandth_of_its_unit_is_in_sums_alone() -> None:
    units = Units()
    span = units.start()
    rows = [
        row for number in range(20) for row in units.rows(span, (f"short {number}", number + 1))
    ]
    rows += units.rows(span, ("long", 74), ("inner", 73))
    span.end(BASE_NS + 74_000_000)
    units.drained(rows)
    (long,) = units.ours()
    assert (long.name, long.attributes[FOLDED], long.attributes[OF_UNIT]) == ("long", 1, 21)
    assert long.attributes["recfn.folded.duration_ns"] == 73_000
    assert long.attributes["recfn.unit.folded.duration_ns"] == 73_000 + sum(range(1, 21)) * 1000
    assert long.attributes["recfn.unit.top"] == [
        "inner: 1 x, 0.073 ms",
        "short 19: 1 x, 0.020 ms",
        "short 18: 1 x, 0.019 ms",
    ]
    assert_balanced(units.sink.counters())


@pytest.mark.parametrize("volume", [DEFAULT, Volume(1000, 1, 5000)])
def test_a_failed_range_and_what_it_lies_in_are_spans_however_short(volume: Volume) -> None:
    units = Units(volume)
    for _ in range(4):
        units.unit(100)
    units.exporter.clear()
    span = units.start()
    parse, handle = units.rows(span, ("handle", 3), ("parse", 2))
    parse |= {"flags": EventFlag.ERROR, "error": "ValueError: no"}
    rows = [row for _ in range(100) for row in units.rows(span, ("op", 100))]
    span.end(BASE_NS + 1_000_000_000)
    units.drained([parse, handle, *rows])
    spans = {one.name: one for one in units.ours()}
    assert set(spans) == {"handle", "parse", "op (folded)"}
    assert not spans["parse"].status.is_ok
    assert spans["parse"].parent.span_id == spans["handle"].context.span_id
    assert ranges_told(units.ours()) == 102


@examples(30)
@given(
    shapes=st.lists(
        st.lists(st.tuples(st.integers(0, 90), st.booleans()), min_size=1, max_size=5), max_size=12
    ),
    took_us=st.integers(1, 120_000),
)
def test_no_span_of_ours_is_shorter_than_a_thousandth_but_those_that_failed(
    shapes: list[list[tuple[int, bool]]], took_us: int
) -> None:
    units = Units(Volume(1000))
    span = units.start()
    rows, failed = [], 0
    for shape in shapes:
        inside_out = units.rows(
            span, *[("op", time_us) for time_us, _ in sorted(shape, reverse=True)]
        )
        for row, (_, fails) in zip(inside_out, shape, strict=True):
            rows.append(
                {**row, "flags": EventFlag.ERROR, "error": "ValueError: no"} if fails else row
            )
            failed += fails
    span.end(BASE_NS + took_us * 1000)
    units.drained(rows)
    spans = units.ours()
    assert sum(not one.status.is_ok for one in spans) == failed
    around = {one.parent.span_id for one in spans}
    others = [one for one in spans if one.status.is_ok and one.context.span_id not in around]
    shorter = [one for one in others if one.end_time - one.start_time < took_us]
    assert not shorter or len(spans) == 1  # each unit has one
    assert ranges_told(spans) == len(rows)
    units.close()


class Program:
    """An instrumented program."""

    def __init__(self, processor: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(processor(self.exporter))
        self.tracer = self.provider.get_tracer("program")
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.instrumentor.instrument(tracer_provider=self.provider)

    def ranges(self) -> list[str]:
        """What a flush has sent of ours."""
        assert self.instrumentor.flush(PATIENCE_S)
        self.provider.force_flush()
        spans = self.exporter.get_finished_spans()
        return [span.name for span in spans if span.instrumentation_scope.name == "otel_recfn"]


@pytest.fixture(params=[SimpleSpanProcessor, BatchSpanProcessor])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    made = Program(request.param)
    yield made
    made.instrumentor.uninstrument()
    made.provider.shutdown()


def test_spans_in_each_other_end_one_by_one(program: Program) -> None:
    names = ["outer", "middle", "inner"]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(program.tracer.start_as_current_span(name))
            with record_function(f"in {name}"):
                pass
        spans = stack.pop_all()
    assert program.ranges() == []
    spans.close()
    assert sorted(program.ranges()) == ["in inner", "in middle", "in outer"]


def test_the_drain_that_a_flush_begins_with_is_the_one_that_counts(program: Program) -> None:
    span = program.tracer.start_span("request")
    with trace.use_span(span), record_function("range"):
        assert program.ranges() == []
    assert program.ranges() == []  # the range has ended, and the span hasn't
    span.end()
    assert program.ranges() == ["range"]
