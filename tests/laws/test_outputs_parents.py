"""Spans and ranges are below what was around them, in each output."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

import outputs_programs as programs
from output_laws import TOLERANCE_NS, TOP, Run, everywhere, times
from output_relations import ancestors_in_span, union_ns
from output_values import Span
from outputs import WAYS, Outputs
from outputs_programs import Program

pytestmark = pytest.mark.torch


# --- parents of spans


@everywhere()
def test_no_span_lacks_its_parent(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    assert len(found.by_span) == len(found.spans)
    for span in found.spans:
        if span.parent_id:
            assert found.by_span[span.parent_id].trace_id == span.trace_id


@everywhere()
def test_spans_are_below_what_was_around_their_ranges(run: Run, program: Program, way: str) -> None:
    assert not misplaced(run(program, way))


@pytest.mark.parametrize(
    "program", [programs.tasks_that_interleave, programs.async_blocks, programs.work_that_goes_on]
)
def test_parents_do_not_depend_on_how_many_ranges_have_spans(run: Run, program: Program) -> None:
    """Where ranges don't nest, or one ends before what lies in it."""
    assert not misplaced(run(program, "low"))


@everywhere()
def test_what_workers_export_is_what_their_files_have(run: Run, program: Program, way: str) -> None:
    """Those of the process that loads data for training.

    Where spans go to processors in memory, they are the worker's own.
    """
    found = run(program, way)
    in_files = Counter(
        (event_id, each.start_ns, each.end_ns)
        for trace in found.children_chrome
        for event_id, each in trace.ranges().items()
    )
    exported = Counter(
        (span.event_id, span.start_ns, span.end_ns) for span in found.child_spans() if span.event_id
    )
    folded = sum(span.attributes.get("recfn.unit.folded.count", 0) for span in found.child_spans())
    assert bool(in_files) == (program is programs.training_with_workers)
    assert exported <= in_files
    if WAYS[way].by_otlp:
        assert exported.total() + folded == in_files.total()


# --- A span of the program's inside a range takes no parents away


@pytest.mark.parametrize("output", ["sink", "profile"])
def test_a_span_of_the_program_takes_no_parent_away(run: Run, output: str) -> None:
    said = run(programs.spans_inside_ranges).said[output]
    enclosing = [
        said[each.parent].name if each.parent in said else None
        for each in said.values()
        if each.name == "inner"
    ]
    assert enclosing == ["outer", "outer"]


@pytest.mark.parametrize("output", ["averages", "tree", "report of the profile"])
def test_a_span_of_the_program_makes_no_time_count_twice(run: Run, output: str) -> None:
    found = run(programs.spans_inside_ranges)
    in_ranges_ns = union_ns([times(event) for event in found.profiled.values()])  # of one thread
    assert (
        sum(sums.self_ns or 0 for sums in found.sums[output].values())
        <= in_ranges_ns + TOLERANCE_NS
    )


def test_the_names_that_took_most_leave_out_what_ran_in_spans_inside(run: Run) -> None:
    found = run(programs.spans_inside_ranges)
    outer = min(
        (event for event in found.events.values() if event.name == "outer"),
        key=lambda event: event.start_ns,
    )
    inside = [
        event.duration_ns
        for event in found.events.values()
        if event.name in ("inner", "work") and outer.start_ns <= event.start_ns < outer.end_ns
    ]
    own = [
        float(match[3]) * 1e6
        for span in found.spans
        for match in map(TOP.fullmatch, span.attributes.get("recfn.unit.top", ()))
        if match is not None
        and match[1] == "outer"
        and span.start_ns <= outer.start_ns
        and outer.end_ns <= span.end_ns
    ]
    assert own
    assert max(own) <= outer.duration_ns - sum(inside) + 1000


# --- helpers


def misplaced(found: Outputs) -> list[str]:
    """The spans of single ranges that aren't below the nearest span of what was around their
    ranges.
    """
    wrong = []
    for event_id in found.single:
        if found.is_step(event_id):
            continue
        span = found.single[event_id]
        enclosing = list(ancestors_in_span(found.events, event_id))
        spans_around = [found.single.get(each) for each in enclosing]
        nearest = next((each for each in spans_around if each is not None), None)
        above = first_that_is_not_folded(found, span)
        current = found.events[event_id].context.span_id
        expected = nearest.span_id if nearest is not None else current
        is_right = above.span_id == expected if expected else above in found.containers()
        if not is_right:
            wrong.append(
                f"{span.name} is below {above.name}, not"
                f" {found.by_span[expected].name if expected else 'a root'}"
            )
    return wrong


def first_that_is_not_folded(found: Outputs, span: Span) -> Span:
    """The nearest span above that stands for no several calls."""
    above = found.by_span[span.parent_id]
    while above.calls:
        above = found.by_span[above.parent_id]
    return above
