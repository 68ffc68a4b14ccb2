"""Each event has the same facts wherever it is shown."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from output_laws import (
    Run,
    differences,
    everywhere,
    nodes_in_shared_spans,
    shares_span,
    times,
)
from output_relations import ancestors, enclosing_slices
from output_values import overlaps
from outputs import WAYS
from outputs_programs import Program

pytestmark = pytest.mark.torch


@everywhere()
def test_each_output_has_each_range(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    assert found.events
    for output in ("profile", "Chrome trace", "Chrome trace of the profile"):
        assert set(found.said[output]) == set(found.events), output
    assert set(found.single) <= set(found.events)
    legacy = found.said["legacy profiler"]
    main = next(iter(found.events.values())).thread  # the thread that enabled it
    assert set(legacy) <= set(found.events)
    on_its_thread = {
        event_id
        for event_id, event in found.events.items()
        if event.thread == main and event.source.name != "MODULE"
    }
    assert on_its_thread <= set(legacy)
    assert found.chrome.instants == found.marks


FACTS = (
    *(
        "start_ns",
        "end_ns",
        "name",
        "thread_id",
        "end_thread",
        "scope",
        "sequence_nr",
        "source",
        "step_number",
        "cpu_time_ns",
        "module",
    ),
    "parent",
)


@everywhere()
def test_each_output_says_the_same_of_a_range(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    for output in ("profile", "Chrome trace", "Chrome trace of the profile", "legacy profiler"):
        assert not differences(found.said[output], found.said["sink"], (*FACTS, "error")), output


@everywhere()
def test_a_span_of_one_range_says_the_same(run: Run, program: Program, way: str) -> None:
    """A node with the range around it in one span says more in tests of its own."""
    found = run(program, way)
    spans = found.said["spans"]
    alone = {event_id: said for event_id, said in spans.items() if not shares_span(found, event_id)}
    facts = ("thread_id", "sequence_nr", "step_number", "cpu_time_ns", "module")
    assert not differences(spans, found.said["sink"], (*facts, "start_ns", "end_ns"))
    assert not differences(alone, found.said["sink"], ("scope",))
    for event_id in spans:
        event = found.events[event_id]
        span = found.single[event_id]
        if WAYS[way].settings.get("span_names") == "torch":
            assert span.name == event.name
        assert span.attributes.get("thread.id", 0) == event.thread.ident
        assert span.attributes.get("thread.name", "") == event.thread.name


@everywhere()
def test_attributes_of_a_slice_are_those_of_its_span(run: Run, program: Program, way: str) -> None:
    """So nothing leaves the process in a file alone."""
    found = run(program, way)
    slices = found.chrome.ranges()
    for event_id, span in found.single.items():
        for name, value in slices[event_id].args.get("Attributes", {}).items():
            expected = tuple(value) if isinstance(value, list) else value
            assert span.attributes[name] == expected


@everywhere()
def test_errors_are_those_of_spans(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    for event_id, span in found.single.items():
        event = found.events[event_id]
        assert span.is_error == found.has(event_id, "ERROR"), event.name
        assert ("error.type" in span.attributes) == span.is_error, event.name
        if event.error:
            assert span.attributes["error.type"] == event.error.partition(": ")[0]
        if span.exceptions:
            assert found.said["spans"][event_id].error.rstrip(": ") == event.error.rstrip(": ")
    failed = {event_id for event_id, event in found.events.items() if event.error}
    have_spans = {*found.single, *nodes_in_shared_spans(found)}
    assert failed <= have_spans, "each range that failed has a span"


@everywhere(without=["tasks_that_interleave"])
def test_slices_nest_as_ranges_do(run: Run, program: Program, way: str) -> None:
    """In Chrome traces, where they nest on their thread.

    What a task runs lies by time in ranges of another one that waits in the same thread.
    """
    found = run(program, way)
    for trace in (found.chrome, found.profile_chrome):
        slices = trace.ranges()
        for event_id, enclosing in enclosing_slices(slices).items():
            own_thread = found.events[event_id].thread
            nearest = [
                each
                for each in ancestors(found.events, event_id)
                if slices[each].nests and found.events[each].thread == own_thread
            ]
            same_time = enclosing and times(slices[enclosing]) == times(slices[event_id])
            assert same_time or enclosing == (nearest[0] if nearest else 0), found.events[
                event_id
            ].name


@everywhere()
def test_asynchronous_slices_are_those_that_do_not_nest(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    for event_id, each in found.chrome.ranges().items():
        event = found.events[event_id]
        assert each.nests == (not overlaps(event) and event.thread == event.end_thread), event.name
