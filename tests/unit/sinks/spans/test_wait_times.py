"""What spans say of what threads worked, and of waiting: one span for a unit in which that was
most.
"""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from spans_harness import REQUEST, Harness

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD
from otel_recfn.model.batch import NO_CONTEXT
from otel_recfn.model.events import EventFlag, EventSource, RecordScope, make_event_id
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume

CPU, WAIT = "recfn.cpu_time_ns", "recfn.unit.wait_time_ns"
ENOUGH = Volume(100)
FEW = Volume(1)
MS = 1_000_000


def call(number: int, took_ms: float, worked_ms: float | None, **more: Any) -> dict[str, Any]:
    """The row of an outermost call. ``worked_ms``: None where it isn't known."""
    start = BASE_NS + number * 100 * MS
    event_id = make_event_id(MAIN_THREAD.number, number)
    times = {"start_ns": start, "end_ns": start + int(took_ms * MS)}
    worked = {} if worked_ms is None else {"cpu_time_ns": int(worked_ms * MS)}
    ids = {"event_id": event_id, "root": event_id, "context": REQUEST}
    return {**ids, "name": "call", "scope": RecordScope.USER_SCOPE, **times, **worked, **more}


def attribute_values(spans: list[ReadableSpan], attribute: str) -> list[tuple[str, Any]]:
    return [
        (span.name, span.attributes[attribute]) for span in spans if attribute in span.attributes
    ]


@pytest.mark.parametrize(
    ("took_ms", "worked_ms", "waited"),
    [
        (10, 2, True),
        (10, 6, False),
        (10, None, False),
        (0.9, 0, False),
        (10, 10.001, False),
        (10, 0, True),
    ],
)
def test_where_it_is_most_of_a_unit(took_ms: float, worked_ms: float | None, waited: bool) -> None:
    spans = Harness(volume=ENOUGH).write(call(1, took_ms, worked_ms))
    assert attribute_values(spans, CPU) == (
        [("call", worked_ms * MS)] if worked_ms is not None else []
    )
    assert attribute_values(spans, WAIT) == (
        [("call", (took_ms - (worked_ms or 0)) * MS)] if waited else []
    )


def test_the_longest_range_directly_in_the_unit_tells_it() -> None:
    top = call(2, 30, 3, name="long")
    inner = call(
        3,
        29,
        2,
        name="inner",
        parent=top["event_id"],
        root=top["event_id"],
        start_ns=top["start_ns"],
        end_ns=top["end_ns"],
    )
    unknown = call(4, 50, None, name="operator")
    spans = Harness(volume=ENOUGH).write(call(1, 20, 1), inner, top)
    assert attribute_values(spans, WAIT) == [("long", 46 * MS)]
    assert attribute_values(Harness(volume=ENOUGH).write(call(1, 20, 1), unknown), WAIT) == [
        ("operator", 19 * MS)
    ]


def test_it_stands_where_the_names_of_the_whole_unit_stand() -> None:
    lasting = [
        (number, BASE_NS + number * 10 * MS, 400 if number == 60 else 10) for number in range(1, 61)
    ]
    calls = [
        call(number, 0, 1, start_ns=start, end_ns=start + took_ms * MS)
        for number, start, took_ms in lasting
    ]
    spans = Harness(volume=Volume(20)).write(*calls)
    assert sorted(span.name for span in spans) == ["call", "call (folded)"]
    assert attribute_values(spans, WAIT) == [("call (folded)", (990 - 60) * MS)]
    assert attribute_values(spans, "recfn.unit.top") == [
        ("call (folded)", ["call: 60 x, 60.000 ms, waited 930.000 ms"])
    ]


def inside(outer: dict[str, Any], number: int, took_ms: float, name: str) -> dict[str, Any]:
    """The row of an operator in an outermost call."""
    return call(
        number,
        took_ms,
        None,
        name=name,
        scope=RecordScope.FUNCTION,
        parent=outer["event_id"],
        root=outer["event_id"],
        start_ns=outer["start_ns"],
        end_ns=outer["start_ns"] + int(took_ms * MS),
    )


def top_of(rows: list[dict[str, Any]], volume: Volume = FEW) -> Any:
    [(_, top)] = attribute_values(Harness(volume=volume).write(*rows), "recfn.unit.top")
    return top


def test_a_range_that_waits_in_python_leaves_the_first_place_to_what_worked() -> None:
    lookup = call(2, 1000, 1, name="lookup")
    model = call(4, 50, 48, name="model")
    rows = [inside(lookup, 1, 5, "aten::view"), lookup, inside(model, 3, 45, "aten::mm"), model]
    assert top_of(rows) == [
        "aten::mm: 1 x, 45.000 ms",
        "model: 1 x, 3.000 ms",
        "aten::view: 1 x, 1.000 ms, waited 4.000 ms",
        "lookup: 1 x, 0.000 ms, waited 995.000 ms",
    ]


def test_an_operator_that_waits_leaves_the_first_place_to_what_worked() -> None:
    decode = call(2, 2000, 100, name="decode")
    prefill = call(4, 200, 200, name="prefill")
    rows = [
        inside(decode, 1, 1900, "aten::view"),
        decode,
        inside(prefill, 3, 150, "aten::mm"),
        prefill,
    ]
    assert top_of(rows) == [
        "aten::mm: 1 x, 150.000 ms",
        "aten::view: 1 x, 100.000 ms, waited 1800.000 ms",
        "prefill: 1 x, 50.000 ms",
    ]


def test_of_calls_inside_calls_each_has_its_own_wait() -> None:
    outer = call(3, 100, 20, name="outer")
    inner = call(2, 60, 15, name="inner", parent=outer["event_id"], root=outer["event_id"])
    inner |= {"start_ns": outer["start_ns"], "end_ns": outer["start_ns"] + 60 * MS}
    rows = [inner, outer]
    for volume in (FEW, ENOUGH):
        spans = Harness(volume=volume).write(*rows)
        (wait,) = [value for _, value in attribute_values(spans, WAIT)]
        assert wait == 80 * MS
    assert top_of(rows) == [
        "inner: 1 x, 15.000 ms, waited 45.000 ms",
        "outer: 1 x, 5.000 ms, waited 35.000 ms",
    ]


def test_what_ran_in_another_thread_counts_as_worked() -> None:
    outer = call(1, 100, 10, name="outer")
    elsewhere = inside(outer, 1, 90, "node") | {
        "event_id": make_event_id(WORKER_THREAD.number, 1),
        "thread": WORKER_THREAD,
    }
    assert top_of([elsewhere, outer])[0] == "node: 1 x, 90.000 ms"


def test_sums_of_calls_say_what_they_worked_together() -> None:
    spans = Harness(volume=FEW).write(*[call(number, 10, number) for number in range(1, 5)])
    assert attribute_values(spans, CPU) == [("call (folded)", 10 * MS)]
    assert attribute_values(spans, WAIT) == [("call (folded)", 30 * MS)]
    assert attribute_values(Harness(volume=FEW).write(call(1, 10, 1), call(2, 10, None)), CPU) == []


def test_the_root_of_a_trace_of_ours_tells_it_itself() -> None:
    harness = Harness(volume=ENOUGH)
    named = {
        "source": EventSource.MODULE,
        "name": "nn.Module: Net_0",
        "flags": EventFlag.EVALUATION,
    }
    row = call(1, 10, 2, context=NO_CONTEXT, **named)
    opened = {name: row[name] for name in ("event_id", "name", "source", "start_ns", "flags")}
    harness.write(row, opened=[opened])
    spans = [*harness.exporter.get_finished_spans(), *harness.close()]
    assert attribute_values(spans, WAIT) == [("module call: Net", 8 * MS)]
    assert [value for _, value in attribute_values(spans, CPU)] == [2 * MS]


def test_where_units_have_no_budget_each_span_says_what_it_worked() -> None:
    spans = Harness(volume=EVERY_RANGE).write(call(1, 10, 2), call(2, 10, 3))
    assert [value for _, value in attribute_values(spans, CPU)] == [2 * MS, 3 * MS]
    assert attribute_values(spans, WAIT) == []
