"""Which spans of the program are remembered, and what a forked child makes of its parent's."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from test_folded_spans import LATER_NS, Units, ranges_told

from batches import BASE_NS, context
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import folding
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.surroundings import ProgramSpans

pytestmark = pytest.mark.one_python

TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("program")


def test_a_forked_childs_copies_of_spans_are_not_waited_for() -> None:
    spans, inherited = ProgramSpans(), TRACER.start_span("inherited")
    spans.saw(1, 2, inherited)
    spans.start_empty()
    spans.saw(1, 2, inherited)
    assert spans.find(1, 2) is None


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


def test_below_a_span_whose_end_is_not_seen_spans_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MOST_ROWS_UNSEEN", 10)
    units = Units()
    for number in range(1, 8):
        ids = [make_event_id(1, 10 * number + place) for place in range(3)]
        units.drained([{"event_id": event_id, "end_ns": BASE_NS + 5, "context": context(7, 8)} for event_id in ids])
    assert len(units.ours()) == 12
    units.flush()
    assert len(units.ours()) == 21
