"""Folded units as spans: all ranges are there, as themselves or in sums; a flush sends what has
ended.
"""

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
from spans_harness import LATER_NS, Harness, assert_balanced

from helpers.batches import BASE_NS, MAIN_THREAD, context, make_batch
from helpers.example_counts import examples
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.columns import Track
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, make_event_id
from otel_recfn.sinks.spans import folding
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.span_hook import Hook

pytestmark = pytest.mark.one_python
FOLDED, OF_UNIT = "recfn.folded.count", "recfn.unit.folded.count"
ENDED_NS = BASE_NS + 1_000_000
"""When units end whose duration doesn't matter."""


DEFAULT = Volume(1000, 50, 5000)


class Units(Harness):
    """Spans of the program, and ranges below them."""

    def __init__(self, volume: Volume = DEFAULT, hook: Hook | None = None) -> None:
        super().__init__(volume=volume, hook=hook)
        self.tracer = self.provider.get_tracer("program")
        self.ranges = 0

    def start(
        self, name: str = "request", parent: trace.Span | None = None, start: int = BASE_NS
    ) -> trace.Span:
        above = trace.set_span_in_context(parent) if parent is not None else None
        span = self.tracer.start_span(name, above, start_time=start)
        own = span.get_span_context()
        self.sink.note_parent_span(own.trace_id, own.span_id, span)
        return span

    def rows(self, span: trace.Span, *shape: tuple[str, int]) -> list[dict[str, Any]]:
        """Ranges in each other, by name and microseconds, the innermost first."""
        own = span.get_span_context()
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
            rows.append({**place, **times, "context": context(own.trace_id, own.span_id)})
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
    own = [span for span in spans if "recfn.event_id" in span.attributes]
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
def test_all_ranges_are_counted_however_units_are_cut(
    shapes: list[list[tuple[str, int]]], volume: Volume, cuts: list[int]
) -> None:
    outcomes = []
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
        assert len(spans) <= volume.unit_budget
        assert all(
            one.attributes.get("recfn.folded.duration_ns", 0) <= one.end_time - one.start_time
            for one in spans
        )
        ids = {one.context.span_id: one.name for one in spans}
        outcomes.append(
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
    assert outcomes[0] == outcomes[1]


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
    span = units.start()
    rows = []
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


def folded(units: Units) -> dict[str, ReadableSpan]:
    """The spans of sums, by name, in the order in which they begin."""
    spans = [one for one in units.ours() if one.name.endswith(" (folded)")]
    return {
        one.name.removesuffix(" (folded)"): one
        for one in sorted(spans, key=lambda one: one.start_time or 0)
    }


def stretch(span: ReadableSpan) -> tuple[float, float]:
    """The begin and end, in microseconds since the request began."""
    return ((span.start_time or 0) - BASE_NS) / 1000, ((span.end_time or 0) - BASE_NS) / 1000


USER = {"scope": RecordScope.USER_SCOPE}


def timed(
    units: Units, span: trace.Span, name: str, start_us: int, took_us: int, **more: Any
) -> dict[str, Any]:
    """A range that is directly in the span."""
    (row,) = units.rows(span, (name, took_us))
    start_ns = BASE_NS + start_us * 1000
    return {**row, "start_ns": start_ns, "end_ns": start_ns + took_us * 1000, **more}


def test_folded_siblings_lie_one_after_another_around_real_ones() -> None:
    units = Units(Volume(50))
    span = units.start()
    rows = []
    for number in range(20):
        start_us = number * 100
        rows += [timed(units, span, "a", start_us, 30), timed(units, span, "b", start_us + 30, 40)]
    rows.append(timed(units, span, "long", 2000, 1000))
    for number in range(20):
        rows.append(timed(units, span, "c", 3000 + number * 100, 90))
    span.end(BASE_NS + 5_000_000)
    units.drained(rows)
    (long,) = [one for one in units.ours() if one.name == "long"]
    found = {name: stretch(one) for name, one in folded(units).items()}
    assert found == {"a": (0, 600), "b": (600, 1400), "c": (3000, 4800)}
    assert stretch(long) == (2000, 3000)


def test_what_lies_in_a_folded_span_is_moved_with_it() -> None:
    units = Units(Volume(50))
    span = units.start()
    rows = []
    for number in range(60):
        rows.append(timed(units, span, "first", number * 100, 50))
        call = timed(units, span, "call", number * 100 + 50, 40, **USER)
        inside = timed(
            units,
            span,
            "inside",
            number * 100 + 60,
            20,
            parent=call["event_id"],
            root=call["event_id"],
        )
        rows += [inside, call]
    span.end(BASE_NS + 6_000_000)
    units.drained(rows)
    found = {name: stretch(one) for name, one in folded(units).items()}
    assert found == {"first": (0, 3000), "call": (3000, 5400), "inside": (3010, 4210)}
    spans = folded(units)
    assert spans["inside"].parent.span_id == spans["call"].context.span_id
    assert (
        spans["call"].attributes[FOLDED],
        spans["call"].attributes["recfn.folded.duration_ns"],
    ) == (60, 1_200_000)
    assert spans["call"].attributes["recfn.folded.top"] == ["inside: 60 x, 1.200 ms"]
    assert FOLDED not in spans["inside"].attributes


def test_calls_of_each_thread_are_folded_apart() -> None:
    units = Units(Volume(50))
    span = units.start()
    rows = []
    other = Track(number=7, thread_id=12, native_id=1007, ident=140_007, name="worker")
    for number in range(60):
        rows.append(timed(units, span, "part", number * 100, 60, **USER))
        event_id = make_event_id(other.number, number + 1)
        elsewhere = {"event_id": event_id, "root": event_id, "thread": other, **USER}
        rows.append({**timed(units, span, "part", number * 100 + 20, 70), **elsewhere})
    span.end(BASE_NS + 6_000_000)
    units.drained(rows)
    main, worker = sorted(units.ours(), key=lambda one: one.start_time or 0)
    for one, track, times in ((main, MAIN_THREAD, (0, 3600)), (worker, other, (20, 4220))):
        assert (one.name, one.attributes["aggregation.span_count"]) == ("part (folded)", 60)
        assert (one.attributes["thread.id"], one.attributes["thread.name"]) == (
            track.ident,
            track.name,
        )
        assert one.attributes["recfn.thread_id"] == track.thread_id
        assert one.attributes["recfn.scope"] == "USER_SCOPE"
        assert stretch(one) == times


def test_a_scope_that_not_all_calls_have_is_not_said() -> None:
    units = Units(Volume(50))
    span = units.start()
    scopes = (RecordScope.FUNCTION, RecordScope.USER_SCOPE)
    rows = [
        timed(units, span, "call", number * 100, 60, scope=scopes[number % 2])
        for number in range(60)
    ]
    span.end(BASE_NS + 6_000_000)
    units.drained(rows)
    attributes = folded(units)["call"].attributes
    assert "recfn.scope" not in attributes
    assert attributes["thread.name"] == MAIN_THREAD.name


def test_a_single_call_in_folded_ones_is_folded_too() -> None:
    units = Units(Volume(50))
    span = units.start()
    rows = []
    for number in range(60):
        call = timed(units, span, "call", number * 100, 90, **USER)
        inside = {"parent": call["event_id"], "root": call["event_id"]}
        rows += (
            [timed(units, span, "rare", number * 100 + 10, 70, **inside)] if number == 40 else []
        )
        rows.append(call)
    span.end(BASE_NS + 6_000_000)
    units.drained(rows)
    spans = folded(units)
    assert (spans["rare"].attributes["aggregation.span_count"], stretch(spans["rare"])) == (
        1,
        (4010, 4080),
    )
    assert "recfn.event_id" not in spans["rare"].attributes
    assert not [one for one in units.ours() if one.name in ("call", "rare")]
    assert ranges_told(units.ours()) == 61


def test_operators_that_only_call_another_one_are_shown_by_it() -> None:
    units = Units()
    span = units.start()
    rows = units.rows(span, ("linear", 400), ("addmm", 390), ("gemm", 380))
    rows += units.rows(span, ("conv", 400), ("im2col", 200))
    span.end(BASE_NS + 1_000_000)
    units.drained(rows)
    spans = {one.name: one for one in units.ours()}
    assert set(spans) == {"gemm", "conv", "im2col"}
    assert spans["gemm"].attributes["recfn.callers"] == ["linear", "addmm"]
    assert spans["gemm"].parent.span_id == span.get_span_context().span_id
    assert "recfn.callers" not in spans["im2col"].attributes
    assert ranges_told(units.ours()) == 5
    assert_balanced(units.sink.counters())


@pytest.mark.parametrize("changed", [{"flags": EventFlag.ERROR, "error": "ValueError: no"}, USER])
def test_a_caller_that_failed_or_is_no_operator_is_a_span(changed: dict[str, Any]) -> None:
    units = Units()
    span = units.start()
    inner, outer = units.rows(span, ("linear", 400), ("addmm", 390))
    span.end(BASE_NS + 1_000_000)
    units.drained([inner, {**outer, **changed}])
    assert [one.name for one in units.ours()] == ["linear", "addmm"]


def test_folded_operators_that_only_call_another_one_are_shown_by_it() -> None:
    units = Units(Volume(50))
    span = units.start()
    rows = []
    for number in range(60):
        (outer,) = [timed(units, span, "linear", number * 100, 90)]
        inside = {"parent": outer["event_id"], "root": outer["event_id"]}
        rows += [timed(units, span, "addmm", number * 100 + 1, 85, **inside), outer]
    span.end(BASE_NS + 6_000_000)
    units.drained(rows)
    (only,) = units.ours()
    assert only.name == "addmm (folded)"
    assert only.attributes["recfn.callers"] == ["linear"]
    assert ranges_told([only]) == 120


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


@pytest.mark.parametrize("bound", ["MAX_UNITS", "MAX_ROWS"])
def test_idle_open_units_are_flushed(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(folding, bound, 5 if bound == "MAX_UNITS" else 50)
    units = Units(Volume(10))
    spans = [units.start(f"connection {number}") for number in range(20)]
    for span in spans:
        units.drained([row for _ in range(10) for row in units.rows(span, ("op", 5))])
    assert_balanced(units.sink.counters(), waiting=50)
    units.drained(units.rows(spans[0], ("again", 5)))
    sent = units.ours()
    assert ranges_told([*sent, *units.close()]) == 201
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
    monkeypatch.setattr(folding, "MAX_UNIT_ROWS", 50)
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


def test_what_is_folded_beside_a_late_child_of_a_sent_range_is_counted() -> None:
    """A part whose only span is the child of a range that an earlier part sent."""
    units = Units()
    span = units.start()
    [child, enclosing] = units.rows(span, ("enclosing", 9), ("child", 900))
    units.drained([enclosing])
    units.flush()
    span.end(ENDED_NS)
    units.drained([child, *units.rows(span, ("short", 0))])
    [sent, late] = units.ours()
    assert (sent.name, late.name) == ("enclosing", "child")
    assert late.parent is not None
    assert late.parent.span_id == sent.context.span_id
    assert late.attributes[OF_UNIT] == 1
    assert_balanced(units.sink.counters())


def test_units_are_sent_in_parts_when_names_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_NAMES", 5)
    units = Units(Volume(10))
    span = units.start()
    for batch in range(3):
        units.drained(
            [row for number in range(3) for row in units.rows(span, (f"{batch}, {number}", 5))]
        )
    assert ranges_told(units.ours()) == 6
    span.end(ENDED_NS)
    units.drained([])
    assert sorted(one.name for one in units.ours()) == [
        f"{batch}, {number}" for batch in range(3) for number in range(3)
    ]
    assert_balanced(units.sink.counters())


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
    enclosing = {one.parent.span_id for one in spans}
    others = [one for one in spans if one.status.is_ok and one.context.span_id not in enclosing]
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


def test_a_flush_sends_what_has_ended_below_spans_that_go_on(program: Program) -> None:
    names = ["outer", "middle", "inner"]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(program.tracer.start_as_current_span(name))
            with record_function(f"in {name}"):
                pass
        spans = stack.pop_all()
    assert sorted(program.ranges()) == ["in inner", "in middle", "in outer"]
    spans.close()
    assert sorted(program.ranges()) == ["in inner", "in middle", "in outer"]


def test_the_drain_that_a_flush_begins_with_is_the_one_that_counts(program: Program) -> None:
    span = program.tracer.start_span("request")
    with trace.use_span(span), record_function("range"):
        with record_function("inside"):
            pass
        assert program.ranges() == ["inside"]
    assert program.ranges() == ["inside", "range"]
    span.end()
    assert program.ranges() == ["inside", "range"]
