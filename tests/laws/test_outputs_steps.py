"""Steps are the same in all outputs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import outputs_programs as programs
from output_laws import Run, times
from outputs_programs import Program

pytestmark = pytest.mark.torch


def test_a_steps_span_and_range_are_the_same_time(run: Run) -> None:
    found = run(programs.steps_by_hand)
    steps = {event_id: span for event_id, span in found.single.items() if found.is_step(event_id)}
    assert steps
    for event_id, span in steps.items():
        event = found.events[event_id]
        assert (span.start_ns, span.end_ns) == (event.start_ns, event.end_ns)


@pytest.mark.parametrize(
    "program", [programs.steps_by_themselves, programs.validation, programs.steps_after_a_pause]
)
def test_steps_that_nobody_marked_are_the_same_in_spans_and_files(
    run: Run, program: Program
) -> None:
    found = run(program)
    number = "recfn.step.number"
    in_file = [(each.args[number], *times(each)) for each in found.chrome.automatic_steps()]
    in_spans = [
        (span.attributes[number], span.start_ns, span.end_ns)
        for span in found.containers()
        if number in span.attributes
    ]
    assert in_file
    assert sorted(in_file) == sorted(in_spans)


def test_steps_that_nobody_marked_are_counted_in_the_order_of_their_begins(run: Run) -> None:
    found = run(programs.steps_around_a_span)
    in_order = sorted(found.chrome.automatic_steps(), key=lambda each: each.start_ns)
    assert [each.args["recfn.step.number"] for each in in_order] == [0, 1, 2, 3]


def test_a_step_that_fails_says_so_without_source_code(run: Run) -> None:
    found = run(programs.steps_that_fail)
    by_name = {span.name: span for span in found.spans}
    for name, error in (("raises", "ValueError"), ("exits", "SystemExit")):
        assert by_name[name].is_error
        assert by_name[name].attributes.get("error.type") == error
        traced = [each.get("exception.stacktrace", "") for each in by_name[name].exceptions]
        assert len(traced) == 1
        assert programs.SECRET not in traced[0]


def test_a_generation_says_its_figures_on_one_span(run: Run) -> None:
    found = run(programs.generation_in_a_step)
    for figure in ("count", "input_tokens", "output_tokens", "time_to_first_token_ns"):
        telling = [
            span.name for span in found.spans if f"recfn.generation.{figure}" in span.attributes
        ]
        assert telling == ["generate"], figure
