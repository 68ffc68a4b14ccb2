"""What is folded is said, and what a backend reckons from spans is what ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

pytest.importorskip("torch")

import outputs_programs as programs
from output_laws import Run, everywhere, nodes_in_shared_spans, own_spans
from output_relations import ancestors_in_span, self_ns_by_backend
from output_values import NODE, Span
from outputs import Outputs
from outputs_programs import Program

pytestmark = pytest.mark.torch


# --- what was folded


@everywhere()
def test_a_span_says_how_many_ranges_in_it_have_none(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    expected = Counter[int]()
    for event_id in found.events:
        if event_id not in found.single:
            enclosing = ancestors_in_span(found.events, event_id)
            expected[next((each for each in enclosing if each in found.single), 0)] += 1
    for event_id, span in found.single.items():
        if not found.is_step(event_id):
            assert span.attributes.get("recfn.folded.count", 0) == expected[event_id], span.name


@everywhere()
def test_a_unit_says_how_long_ranges_without_a_span_took(
    run: Run, program: Program, way: str
) -> None:
    check_folded_duration(run(program, way))


def test_no_time_of_a_task_counts_twice_as_folded(run: Run) -> None:
    check_folded_duration(run(programs.async_blocks, "few spans"))


def check_folded_duration(found: Outputs) -> None:
    """It is that of those in no other one without a span."""
    if found.counters["unsampled"]:
        return  # no span says how long that took
    have_spans = {*found.single, *nodes_in_shared_spans(found)}
    outermost = [
        event
        for event_id, event in found.events.items()
        if event_id not in have_spans
        and next(ancestors_in_span(found.events, event_id), 0) in {0, *have_spans}
    ]
    took = sum(span.attributes.get("recfn.unit.folded.duration_ns", 0) for span in own_spans(found))
    assert took == sum(event.duration_ns for event in outermost)


@everywhere()
def test_folded_spans_have_the_times_of_their_calls(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    for span in [each for each in own_spans(found) if each.calls]:
        names = (
            "count",
            "duration_min_ns",
            "duration_avg_ns",
            "duration_max_ns",
            "duration_total_ns",
        )
        count, shortest, average, longest, total = [
            span.attributes["aggregation." + name.replace("count", "span_count")] for name in names
        ]
        assert average == total // count
        assert shortest <= average <= longest
        assert count > 0
        name = span.name.removesuffix(" (folded)")
        calls = [
            event.duration_ns
            for event in found.events.values()
            if event.name in (name, NODE + name)
        ]
        if calls:
            assert min(calls) <= shortest
            assert longest <= max(calls)


# --- What a backend reckons is true


def test_folded_siblings_of_a_thread_lie_one_after_another(run: Run) -> None:
    found = run(programs.repeated_calls, "few spans")
    siblings = defaultdict[int, list[Span]](list)
    for span in found.folded():
        siblings[span.parent_id].append(span)
    assert siblings
    for parent_id, spans in siblings.items():
        spans.sort(key=lambda span: span.start_ns)
        for one, following in pairwise(spans):
            assert one.end_ns <= following.start_ns
        assert found.by_span[parent_id].start_ns <= spans[0].start_ns
        assert spans[-1].end_ns <= found.by_span[parent_id].end_ns


IN_ONE_THREAD = (
    "generation",
    "repeated_calls",
    "steps_by_themselves",
    "validation",
    "spans_of_the_program",
)


@pytest.mark.parametrize("way", ["defaults", "defaults by OTLP", "few spans", "low"])
@pytest.mark.parametrize("name", IN_ONE_THREAD)
def test_self_times_that_a_backend_reckons_are_what_ran(run: Run, name: str, way: str) -> None:
    found = run(programs.PROGRAMS[name], way)
    roots = [span for span in found.spans if span.parent_id not in found.by_span]
    assert roots
    for root in roots:
        spans = [span for span in found.spans if span.trace_id == root.trace_id]
        assert (
            sum(self_ns_by_backend(span, found.below(span)) for span in spans)
            <= 1.1 * root.duration_ns
        )


def test_folded_spans_have_the_scope_of_their_calls(run: Run) -> None:
    found = run(programs.repeated_calls, "few spans")
    scopes = {event.name: event.scope.name for event in found.events.values()}
    folded = {
        span.name.removesuffix(" (folded)"): span.attributes.get("recfn.scope")
        for span in found.folded()
    }
    assert folded["compute"] == "USER_SCOPE"
    assert folded == {name: scopes[name] for name in folded}


def test_an_operator_that_only_calls_another_one_is_no_span(run: Run) -> None:
    found = run(programs.operators_that_call_one)
    addmm = [event for event in found.events.values() if event.name == "aten::addmm"]
    only_called = [
        event
        for event in addmm
        if event.duration_ns >= 0.9 * found.events[event.parent].duration_ns
    ]
    assert only_called
    for event in only_called:
        assert event.parent not in found.single
        assert "aten::linear" in found.single[event.event_id].attributes["recfn.callers"]


# --- Threads are never folded together


def test_a_folded_span_stands_for_one_thread(run: Run) -> None:
    found = run(programs.threads, "few spans")
    parts = [span for span in found.folded() if span.name == "part (folded)"]
    names = {event.thread.name for event in found.events.values() if event.name == "part"}
    assert parts
    for span in parts:
        assert span.attributes.get("thread.name") in names
        assert "thread.id" in span.attributes
        assert span.duration_ns == span.attributes["aggregation.duration_total_ns"]


def test_folded_spans_say_what_was_folded_into_them(run: Run) -> None:
    found = run(programs.repeated_calls, "few spans")
    computing = [span for span in found.folded() if span.name == "compute (folded)"]
    assert computing
    assert all(span.attributes.get("recfn.folded.count", 0) > 0 for span in computing)


# --- A span of one operation has that operation's begin and end


def test_a_single_call_below_folded_ones_has_its_own_times(run: Run) -> None:
    found = run(programs.a_single_call_in_repeated_ones, "few spans")
    rare = [span for span in found.spans if span.name.removesuffix(" (folded)") == "rare"]
    assert rare
    for span in rare:
        if span.event_id:
            event = found.events[span.event_id]
            assert (span.start_ns, span.end_ns) == (event.start_ns, event.end_ns)
        else:
            assert (span.name, span.calls) == ("rare (folded)", 1)
