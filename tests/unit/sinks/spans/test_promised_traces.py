"""A trace of our own is decided once, by whoever needs it first: the program's thread or the sink's."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanContext

from otel_recfn.sinks.spans.provider import RootStart
from otel_recfn.sinks.spans.surroundings import PromisedTraces

pytestmark = pytest.mark.one_python

FIRST, SECOND = (RootStart(SpanContext(trace_id, 1, False), {}) for trace_id in (1, 2))


def refuse() -> RootStart | None:
    raise AssertionError("it was decided before")


def test_the_programs_decision_is_the_sinks() -> None:
    traces = PromisedTraces()
    assert traces.trace_of(7, lambda: FIRST) == FIRST.context
    assert traces.trace_of(7, refuse) == FIRST.context
    assert traces.decide(7) == (True, FIRST)


def test_a_trace_that_the_sampler_refused_is_refused_for_the_sink_too() -> None:
    traces = PromisedTraces()
    assert traces.trace_of(7, lambda: None) is None
    assert traces.decide(7) == (True, None)


def test_the_sinks_decision_is_the_programs() -> None:
    traces = PromisedTraces()
    assert traces.decide(7) == (False, None)
    assert traces.trace_of(7, refuse) is None  # the sink is about to say
    traces.publish(7, SECOND)
    assert traces.trace_of(7, refuse) == SECOND.context
