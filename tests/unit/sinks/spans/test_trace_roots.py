"""The root of a trace is decided once, whoever comes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from opentelemetry.trace import SpanContext

from helpers.timeouts import PATIENCE_S
from otel_recfn.sinks.spans.span_target import RootStart
from otel_recfn.sinks.spans.trace_roots import TraceRoots

pytestmark = pytest.mark.one_python
NO_IDS = np.zeros(0, np.uint64)
FIRST, SECOND = (RootStart(SpanContext(trace_id, 1, False), {}) for trace_id in (1, 2))


def refuse() -> RootStart | None:
    raise AssertionError("it was decided before")


@pytest.mark.parametrize("decision", [FIRST, None])
def test_the_first_decision_counts(decision: RootStart | None) -> None:
    roots = TraceRoots()
    assert roots.decide(7, lambda: decision) is decision
    assert roots.decide(7, refuse) is decision


def test_the_first_that_knows_the_trace_of_a_range_says_it() -> None:
    roots = TraceRoots()
    assert roots.known_first_range(9) is None
    assert roots.first_range(9, 7) == 7
    assert (roots.first_range(9, 9), roots.known_first_range(9)) == (7, 7)


def test_the_sink_says_the_trace_of_ranges_that_it_has_seen() -> None:
    roots = TraceRoots()
    roots.note_batch(NO_IDS, NO_IDS, [(5, 9, 3), (20, 20, 20)])
    assert [roots.known_first_range(root) for root in (4, 5, 9, 10, 20, 21)] == [
        *(None, 3, 3),
        *(None, 20, None),
    ]
    assert roots.first_range(9, 9) == 3


def test_the_sink_hears_of_what_the_program_asked_until_it_has_seen_it() -> None:
    roots = TraceRoots()
    roots.first_range(9, 7)
    roots.first_range(8, 7)
    roots.decide(7, lambda: FIRST)
    firsts = np.array([6, 7], np.uint64)
    assert roots.asked() == [(8, 7), (9, 7)]
    assert roots.are_decided(firsts).tolist() == [False, True]
    roots.note_batch(np.array([8], np.uint64), firsts, [])
    assert roots.asked() == [(9, 7)]
    assert not roots.are_decided(firsts).any()
    assert roots.decide(7, refuse) is FIRST


def test_nobody_waits_for_a_sampler_that_another_thread_asks_and_both_get_one_root() -> None:
    roots = TraceRoots()
    asked = threading.Event()
    answers = threading.Event()

    def slow_sampler() -> RootStart:
        asked.set()
        assert answers.wait(PATIENCE_S)
        return FIRST

    with ThreadPoolExecutor(1) as sink:
        decided = sink.submit(roots.decide, 7, slow_sampler)
        assert asked.wait(PATIENCE_S)
        assert roots.decide(7, lambda: SECOND) is SECOND
        answers.set()
        assert decided.result(PATIENCE_S) is SECOND


def test_a_sampler_that_asks_for_the_current_span_finds_none_yet() -> None:
    roots = TraceRoots()
    found: list[RootStart | None] = []

    def start() -> RootStart:
        found.append(roots.decide(7, refuse))
        return FIRST

    assert roots.decide(7, start) is FIRST
    assert found == [None]
