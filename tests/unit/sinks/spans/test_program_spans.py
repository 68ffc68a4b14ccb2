"""Which spans of the program are remembered, and what a forked child makes of its parent's."""

from __future__ import annotations

import time
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, StatusCode
from test_folded_spans import LATER_NS, Units, ranges_told

from batches import BASE_NS, context
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import folding, surroundings
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.surroundings import ProgramSpans

pytestmark = pytest.mark.one_python

TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("program")


def test_spans_that_say_nothing_of_their_end_are_not_remembered() -> None:
    spans, ended = ProgramSpans(), TRACER.start_span("ended")
    ended.end()
    for span in (NonRecordingSpan(ended.get_span_context()), ended):
        spans.saw(1, 2, span)
        assert spans.find(1, 2) is None
    spans.saw(1, 2, going_on := TRACER.start_span("going on"))
    assert spans.find(1, 2) is going_on
    spans.forget(1, 2)
    assert spans.find(1, 2) is None


def test_a_forked_childs_copies_of_spans_are_not_waited_for() -> None:
    spans, inherited = ProgramSpans(), TRACER.start_span("inherited")
    spans.saw(1, 2, inherited)
    spans.start_empty()
    spans.saw(1, 2, inherited)
    assert spans.find(1, 2) is None


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "MAX_REMEMBERED", 4)
    spans, span = ProgramSpans(), TRACER.start_span("request")
    for number in range(1, 6):
        spans.saw(number, 1, span)
    assert spans.find(1, 1) is None
    assert spans.find(5, 1) is span


def test_spans_that_a_child_gives_an_early_start_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "MAX_REMEMBERED", 4)
    spans = ProgramSpans()
    spans.start_empty()
    for number in range(1, 11):
        spans.saw(number, 1, TRACER.start_span("from the queue", start_time=BASE_NS))
    assert spans.was_inherited(10, 1)
    assert sum(spans.was_inherited(number, 1) for number in range(1, 11)) <= 4


@pytest.mark.parametrize("name", [["a", "list"], {"a": 1}, None, 5, b"bytes"])
def test_a_span_may_have_any_name(name: Any) -> None:
    units = Units()
    for _ in range(2):
        units.unit(10, name)
    units.unit(10, "an ordinary name")
    assert ranges_told(units.ours()) == 30


WHEN = [datetime(2026, 1, 1), "noon", float("nan"), float(BASE_NS + 1000), 0, -5, 1 << 70, BASE_NS / 1e9, BASE_NS + 2000]


@pytest.mark.parametrize("start", WHEN, ids=str)
@pytest.mark.parametrize("end", WHEN, ids=str)
def test_a_span_may_have_any_times_and_ours_have_those_that_can_be_sent(start: Any, end: Any) -> None:
    units = Units(Volume(12, 6, 60, per_second=3))
    for number in range(2):
        span = units.start(start=start)
        rows = [row for one in range(30) for row in units.rows(span, ("outer", 5), (f"op {one % 3}", 1))]
        span.end(end)
        units.drained(rows, drained_ns=LATER_NS + number)
    units.flush()
    assert ranges_told(units.ours()) == 120
    for one in units.ours():
        assert isinstance(one.start_time, int)
        assert isinstance(one.end_time, int)
        assert 0 <= one.start_time <= one.end_time < 1 << 63


def test_a_span_that_ends_in_the_future_has_ended() -> None:
    units = Units()
    span = units.start()
    rows = units.rows(span, ("outer", 5), ("inner", 1))
    span.end(time.time_ns() + 3600 * 10**9)
    units.drained(rows, drained_ns=time.time_ns() - 1)
    assert not units.ours()  # what began in it may still be in a thread's buffer
    units.drained((), drained_ns=time.time_ns() + 1)
    assert ranges_told(units.ours()) == 2


@pytest.mark.parametrize("away_s", [-3600, 3600])
def test_spans_with_times_of_another_day_get_no_more_spans_in_a_time(away_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "time", SimpleNamespace(time_ns=lambda: BASE_NS + 10**9))
    units = Units(Volume(1000, 50, None, per_second=10))
    for number in range(100):
        span = units.start(f"request {number % 2}")
        rows = [row for _ in range(200) for row in units.rows(span, ("op", 1))]
        span.set_status(StatusCode.ERROR)
        span.end(BASE_NS + (away_s * 10**9 if number % 2 else 1_000_000))
        units.drained(rows)
    assert len(units.ours()) <= 100 + 10 * 10


def test_below_a_span_whose_end_is_not_seen_spans_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MOST_ROWS_UNSEEN", 10)
    units = Units()
    for number in range(1, 8):
        ids = [make_event_id(1, 10 * number + place) for place in range(3)]
        units.drained([{"event_id": event_id, "end_ns": BASE_NS + 5, "context": context(7, 8)} for event_id in ids])
    assert len(units.ours()) == 12
    units.flush()
    assert len(units.ours()) == 21
