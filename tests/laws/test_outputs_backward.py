"""Backward nodes are the same in all outputs, and one span each unless every range is one."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

import outputs_programs as programs
from output_laws import TOP, Run, differences, everywhere, shares_span, times
from output_values import NODE, Span
from outputs import EACH_WAY, Outputs
from outputs_programs import Program

pytestmark = pytest.mark.torch

FOLDING_WAYS = [way for way in EACH_WAY if "every range" not in way]


@pytest.mark.parametrize("way", FOLDING_WAYS)
@pytest.mark.parametrize(
    "program", [programs.nodes_that_wait, programs.steps_by_themselves, programs.spans_in_nodes]
)
def test_a_backward_node_is_one_span_with_the_range_around_it(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    nodes = node_spans(found)
    assert nodes or has_few_spans(program, way)
    assert {found.events[span.event_id].name for span in nodes} == {
        NODE + span.name for span in nodes
    }
    assert not [span.name for span in found.spans if span.name.startswith(NODE)]


@everywhere()
def test_a_backward_node_is_apart_only_where_every_range_is_a_span(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    shared = [event_id for event_id in found.single if shares_span(found, event_id)]
    apart = [
        event_id
        for event_id in found.single
        if found.events[event_id].name.startswith(NODE) and event_id not in shared
    ]
    assert not (shared if "every range" in way else apart)


@pytest.mark.parametrize("way", FOLDING_WAYS)
@pytest.mark.parametrize("program", [programs.steps_by_themselves, programs.spans_in_nodes])
def test_a_backward_nodes_span_has_the_id_of_its_slice(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    slices = found.chrome.ranges()
    nodes = node_spans(found)
    assert nodes or has_few_spans(program, way)
    for span in nodes:
        assert (span.start_ns, span.end_ns) == times(slices[span.event_id])


@everywhere()
def test_a_link_leads_to_a_span_that_was_sent_and_never_to_the_parent(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    for span in found.spans:
        for linked_id in span.linked_ids:
            assert linked_id in found.by_span, span.name
            assert linked_id != span.parent_id, span.name


@everywhere()
def test_sequence_numbers_are_the_same_everywhere(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    for output in (
        "profile",
        "Chrome trace",
        "Chrome trace of the profile",
        "legacy profiler",
        "spans",
    ):
        assert not differences(found.said[output], found.said["sink"], ("sequence_nr",)), output


def test_the_range_around_a_node_has_its_sequence_number(run: Run) -> None:
    events = run(programs.steps_by_themselves).events
    scope = "BACKWARD_FUNCTION"
    nodes = [each for each in events.values() if each.scope.name == scope and each.sequence_nr >= 0]
    assert nodes
    for node in nodes:
        around = events[node.parent]
        assert (around.sequence_nr, around.forward_thread_id) == (
            node.sequence_nr,
            node.forward_thread_id,
        )


@pytest.mark.parametrize("way", FOLDING_WAYS)
def test_the_names_that_took_most_are_counted_once(run: Run, way: str) -> None:
    """In one unit, or in several together: on a busy machine the unit may be decided in parts, and
    a name needn't be among those that took most in each.
    """
    found = run(programs.nodes_that_wait, way)
    ranges = Counter(event.name for event in found.events.values())
    tops = [span.attributes.get("recfn.unit.top", ()) for span in found.spans]
    counts = Counter[str]()
    for match in [TOP.fullmatch(text) for top in tops for text in top]:
        if match is not None:
            counts[match[1]] += int(match[2])
    assert counts
    assert not counts - ranges
    if sum(map(bool, tops)) == 1:
        assert counts == {name: ranges[name] for name in counts}


def has_few_spans(program: Program, way: str) -> bool:
    """Whether there are too few spans for the nodes of a program that are all alike."""
    return program is programs.steps_by_themselves and way == "few spans"


def node_spans(found: Outputs) -> list[Span]:
    """The spans of single backward nodes."""
    return [
        span
        for span in found.single.values()
        if span.attributes["recfn.scope"] == "BACKWARD_FUNCTION"
    ]
