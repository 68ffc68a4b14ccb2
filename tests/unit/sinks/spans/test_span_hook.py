"""What a hook of the program's makes of the spans of ranges; which spans of the program are
remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spans_harness import LATER_NS
from test_folded_spans import Units, ranges_told

from helpers.batches import BASE_NS, context
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.sinks.spans import folding
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.span_hook import SpanHook

pytestmark = pytest.mark.one_python


def no_ranges() -> None:
    """The program where a test gives none."""


def spans_of(
    hook: Callable[[Event, dict[str, Any]], Any],
    program: Callable[[], None] = no_ranges,
    span_budget: int | None = None,
) -> tuple[list[ReadableSpan], dict[str, int]]:
    """What a program's ranges become below a span of its own, and the counters."""
    provider = TracerProvider()
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(
        tracer_provider=provider, span_hook=hook, modules=False, span_budget=span_budget
    )
    try:
        with provider.get_tracer("program").start_as_current_span("request"):
            program()
            with record_function("outer"), record_function("middle"), record_function("inner"):
                pass
        assert instrumentor.flush(PATIENCE_S)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    return list(exporter.get_finished_spans()), instrumentor.counters()


def paths(spans: list[ReadableSpan]) -> list[str]:
    by_id = {span.context.span_id: span for span in spans}

    def path(span: ReadableSpan) -> str:
        return f"{path(by_id[span.parent.span_id])}/{span.name}" if span.parent else span.name

    return sorted(path(span) for span in spans)


def balanced(counters: dict[str, int]) -> bool:
    """Every range is exported or folded, or the hook didn't want it."""
    return counters["recorded"] + counters["added"] == sum(
        counters[name] for name in ("exported", "folded", "unsampled")
    )


def test_it_renames_and_changes_attributes() -> None:
    seen = []

    def hook(row: Event, attributes: dict[str, Any]) -> str | None:
        seen.append(row)
        attributes["tenant"] = "owl"
        del attributes["recfn.handle"]
        return "renamed" if row.name == "middle" else None

    spans, counters = spans_of(hook)
    ours = {span.name: span.attributes or {} for span in spans if span.name != "request"}
    assert ours.keys() == {"outer", "renamed", "inner"}
    assert all(each["tenant"] == "owl" and "recfn.handle" not in each for each in ours.values())
    assert {row.event_id for row in seen} == {each["recfn.event_id"] for each in ours.values()}
    assert all(row.context.span_id for row in seen)
    assert balanced(counters)


def test_what_is_dropped_with_all_that_lies_in_it() -> None:
    spans, counters = spans_of(
        lambda row, _attributes: False if row.name in ("middle", "inner") else None
    )
    assert paths(spans) == ["request", "request/outer"]
    assert counters["unsampled"] == 2
    assert balanced(counters)


@pytest.mark.parametrize("dropped", [["outer"], ["middle"], ["outer", "middle"]])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(1000)], ids=["every range", "folded"])
def test_the_children_of_a_dropped_span_become_its_parents(
    dropped: list[str], volume: Volume, caplog: pytest.LogCaptureFixture
) -> None:
    """On ranges with set times: a real one is no span in a request that took a thousand times as
    long, and on a busy machine any request may.
    """
    wants = dict.fromkeys(dropped, False)
    units = Units(volume, lambda row, _attributes: wants.get(row.name))
    request = units.start()
    rows = units.rows(request, ("outer", 90), ("middle", 50), ("inner", 20))
    request.end(BASE_NS + 100_000)
    units.drained(rows)
    units.flush()
    path = [name for name in ("request", "outer", "middle", "inner") if name not in dropped]
    spans = list(units.exporter.get_finished_spans())
    assert paths(spans) == ["/".join(path[: number + 1]) for number in range(len(path))]
    counters = dict(units.sink.counters())
    assert counters["unsampled"] == len(dropped)
    assert balanced(counters)
    assert not caplog.messages


def test_what_was_folded_into_a_dropped_span_goes_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def many() -> None:
        with record_function("unit"), record_function("around"):
            for _ in range(2000):
                with record_function("many"):
                    pass

    spans, counters = spans_of(
        lambda row, _attributes: False if row.name == "around" else None, many, span_budget=1000
    )
    assert "around" not in {span.name for span in spans}
    assert balanced(counters)
    assert not caplog.messages


def test_a_span_that_can_not_be_dropped_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def program() -> None:
        for _ in range(2):
            with record_function("shown"):
                trace.get_current_span().set_attribute("seen", True)

    spans, _ = spans_of(lambda row, _attributes: False if row.name == "shown" else None, program)
    assert [span.name for span in spans].count("shown") == 2
    [message] = caplog.messages
    assert "'shown'" in message
    assert "current span" in message


def test_a_span_whose_children_were_flushed_is_not_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def program() -> None:
        with record_function("around"):
            with record_function("before"):
                pass
            assert OtelRecordFunctionInstrumentor().flush(PATIENCE_S)

    spans, _ = spans_of(lambda row, _attributes: False if row.name == "around" else None, program)
    assert "request/around/before" in paths(spans)
    [message] = caplog.messages
    assert "sent before it ended" in message


def test_a_span_with_the_sums_of_its_unit_is_not_dropped() -> None:
    def many() -> None:
        with record_function("around"):
            for _ in range(2000):
                with record_function("many"):
                    pass

    spans, counters = spans_of(lambda row, attributes: False, many, span_budget=1000)
    assert balanced(counters)
    assert counters["folded"] > 0
    assert (
        sum((span.attributes or {}).get("recfn.unit.folded.count", 0) for span in spans)
        == counters["folded"]
    )


def test_a_hook_that_raises_is_called_no_more(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def hook(row: Event, attributes: dict[str, Any]) -> None:
        calls.append(row)
        attributes["half"] = True
        raise ValueError("no")

    with caplog.at_level(logging.ERROR):
        spans, _ = spans_of(hook)
    assert len(calls) == 1
    assert caplog.text.count("span_hook raised") == 1
    assert not any("half" in (span.attributes or {}) for span in spans)
    assert len(spans) == 4


def test_an_invalid_name_or_attribute_drops_only_that_span() -> None:
    def hook(row: Event, attributes: dict[str, Any]) -> str:
        attributes |= {
            "object": object(),
            "text": "\ud800",
            "texts": ["fine", "too"],
            "long": 1 << 63,
            "mixed": [1, "a"],
        }
        return "name \ud800"

    spans, _ = spans_of(hook)
    ours = [span for span in spans if span.name != "request"]
    assert {span.name for span in ours} == {"name \\ud800"}
    assert all((span.attributes or {})["texts"] == ("fine", "too") for span in ours)
    (encoded,) = encode_spans(ours).resource_spans
    assert len(encoded.scope_spans[0].spans) == len(ours) == 3


def event(flags: EventFlag = EventFlag.NONE) -> Any:
    class Row:
        name = "row"

    Row.flags = flags  # type: ignore[attr-defined]
    return Row()


@given(
    parents=st.lists(st.integers(0, 100), max_size=20),
    dropped=st.sets(st.integers(1, 20)),
    shown=st.sets(st.integers(1, 20)),
    order=st.randoms(use_true_random=False),
)
def test_in_any_order_no_sent_span_lacks_its_parent(
    parents: list[int], dropped: set[int], shown: set[int], order: Any
) -> None:
    """Span n's parent is a span before it, or 1000, which the program has."""
    tree = {
        number: 1000 if number == 1 else 1 + drawn % (number - 1)
        for number, drawn in enumerate(parents, 1)
    }
    numbers = list(tree)
    order.shuffle(numbers)
    wants: list[Any] = [None]
    hook = SpanHook(lambda _row, _attributes: wants[0])
    sent: dict[int, int] = {}
    for number in numbers:
        wants[0] = False if number in dropped else None
        flags = EventFlag.EXPOSED if number in shown else EventFlag.NONE
        asked = hook.ask(event(flags), number, tree[number], "name", {})
        if asked is not None:
            sent[number] = asked[1]
    assert {parent for parent in sent.values() if parent != 1000} <= sent.keys()
    assert sent.keys() >= (tree.keys() - dropped) | (shown & tree.keys())


TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("program")


def test_a_forked_childs_copies_of_spans_are_not_waited_for() -> None:
    spans = ProgramSpans()
    inherited = TRACER.start_span("inherited")
    spans.note_parent_span(1, 2, inherited)
    spans.start_empty()
    spans.note_parent_span(1, 2, inherited)
    assert spans.find(1, 2) is None


@pytest.mark.parametrize("name", [["a", "list"], {"a": 1}, None, 5, b"bytes"])
def test_a_span_may_have_any_name(name: Any) -> None:
    units = Units()
    for _ in range(2):
        units.unit(10, name)
    units.unit(10, "an ordinary name")
    assert ranges_told(units.ours()) == 30


WHEN = [
    datetime(2026, 1, 1),
    "noon",
    float("nan"),
    float(BASE_NS + 1000),
    0,
    -5,
    1 << 70,
    BASE_NS / 1e9,
    BASE_NS + 2000,
]


@pytest.mark.parametrize("start", WHEN, ids=str)
@pytest.mark.parametrize("end", WHEN, ids=str)
def test_a_span_may_have_any_times_and_ours_have_those_that_can_be_sent(
    start: Any, end: Any
) -> None:
    units = Units(Volume(12, 6, 60, per_second=3))
    for number in range(2):
        span = units.start(start=start)
        rows = [
            row for one in range(30) for row in units.rows(span, ("outer", 5), (f"op {one % 3}", 1))
        ]
        span.end(end)
        units.drained(rows, drained_ns=LATER_NS + number)
    units.flush()
    assert ranges_told(units.ours()) == 120
    for one in units.ours():
        assert isinstance(one.start_time, int)
        assert isinstance(one.end_time, int)
        assert 0 <= one.start_time <= one.end_time < 1 << 63


def test_below_a_span_whose_end_is_not_seen_spans_come_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folding, "MAX_ROWS_UNSEEN", 10)
    units = Units()
    for number in range(1, 8):
        ids = [make_event_id(1, 10 * number + place) for place in range(3)]
        units.drained(
            [
                {"event_id": event_id, "end_ns": BASE_NS + 5, "context": context(7, 8)}
                for event_id in ids
            ]
        )
    assert len(units.ours()) == 12
    units.flush()
    assert len(units.ours()) == 21
