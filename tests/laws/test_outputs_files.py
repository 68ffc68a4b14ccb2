"""Local files show the program's own spans as they were, and reports read what was recorded."""

from __future__ import annotations

from collections import defaultdict

import pytest

pytest.importorskip("torch")

import outputs_programs as programs
from output_laws import TOLERANCE_NS, Run
from output_values import STEP_IN_CHROME, UNNAMED_STEP, Slice
from outputs_programs import Program

pytestmark = pytest.mark.torch


# --- The program's own spans stand in local files as they were


@pytest.mark.parametrize("program", [programs.spans_of_the_program, programs.tasks_that_interleave])
def test_slices_of_the_programs_spans_are_these_spans(run: Run, program: Program) -> None:
    """Where one thread works for them."""
    found = run(program)
    slices = defaultdict[str, list[Slice]](list)
    for each in found.chrome.spans():
        slices[each.args["span_id"]].append(each)
    for span in found.program_spans():
        own = slices[f"{span.span_id:016x}"]
        assert len(own) == 1, f"{span.name} has {len(own)} slices"
        assert abs(own[0].start_ns - span.start_ns) <= TOLERANCE_NS
        assert abs(own[0].end_ns - span.end_ns) <= TOLERANCE_NS


def test_no_two_slices_of_a_thread_end_at_once(run: Run) -> None:
    slices = [each for each in run(programs.spans_of_the_program).chrome.slices if each.nests]
    assert len({(each.thread, each.end_ns) for each in slices}) == len(slices)


# --- Reports read what was recorded


def test_a_span_is_not_added_to_ranges_of_its_name(run: Run) -> None:
    found = run(programs.spans_called_as_ranges)
    assert found.chrome.report.sums["rec"].count == 3


def test_asynchronous_steps_that_interleave_count_once(run: Run) -> None:
    found = run(programs.steps_that_interleave)
    assert found.profile_report.sums["serve"].count == 3
    assert found.chrome.report.sums["serve"].count == 3


def test_a_step_without_a_name_is_in_a_report_once(run: Run) -> None:
    found = run(programs.steps_without_names)
    assert found.chrome.report.sums[UNNAMED_STEP].count == 3
    assert STEP_IN_CHROME not in found.chrome.report.sums


def test_requests_that_were_not_sampled_are_no_rows_of_reports(run: Run) -> None:
    found = run(programs.sampling)
    assert not [name for name in found.chrome.report.sums if name.startswith("span ")]
