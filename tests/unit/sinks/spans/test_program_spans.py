"""Which spans of the program are remembered, and what a forked child makes of its parent's."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan
from test_folded_spans import Units

from batches import BASE_NS, context
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import open_units, program_spans
from otel_recfn.sinks.spans.program_spans import ProgramSpans

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
    monkeypatch.setattr(program_spans, "MAX_REMEMBERED", 4)
    spans, span = ProgramSpans(), TRACER.start_span("request")
    for number in range(1, 6):
        spans.saw(number, 1, span)
    assert spans.find(1, 1) is None
    assert spans.find(5, 1) is span


def test_below_a_span_whose_end_is_not_seen_spans_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_units, "MOST_ROWS_UNSEEN", 10)
    units = Units()
    for number in range(1, 8):
        ids = [make_event_id(1, 10 * number + place) for place in range(3)]
        units.came([{"event_id": event_id, "end_ns": BASE_NS + 5, "context": context(7, 8)} for event_id in ids])
    assert len(units.ours()) == 12
    units.sink.flush(1.0)
    assert len(units.ours()) == 21
