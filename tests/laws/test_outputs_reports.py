"""A report of a Chrome trace is the report of the profile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

from output_laws import Run, everywhere, times
from output_values import STEP_IN_CHROME
from outputs import Outputs
from outputs_programs import Program

pytestmark = pytest.mark.torch


@everywhere()
def test_the_report_of_a_profiles_trace_is_that_of_the_profile(
    run: Run, program: Program, way: str
) -> None:
    """Rows, counts, total and self times, shares, the wall time, threads and steps."""
    found = run(program, way)
    trace = found.profile_chrome.report.data
    own = found.profile_report.data
    assert by_name(trace) == by_name(own)
    assert without_samples(trace) == without_samples(own)


@everywhere()
def test_the_wall_time_of_a_programs_trace_contains_all_of_its_ranges_and_steps(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    recorded = [*found.chrome.ranges().values(), *found.chrome.automatic_steps()]
    begins, ends = zip(*map(times, recorded), strict=True)
    assert found.chrome.report.wall_ns == max(ends) - min(begins)


@everywhere(without=["open_at_the_end"])
def test_a_programs_trace_and_its_profile_have_the_same_rows(
    run: Run, program: Program, way: str
) -> None:
    """A range that is open at the end has another one in each."""
    found = run(program, way)
    own, trace = (
        {name: (count, total_us, self_us) for name, count, total_us, self_us, _ in by_name(data)}
        for data in (found.profile_report.data, found.chrome.report.data)
    )
    assert trace == own


@everywhere()
def test_steps_are_those_that_something_marks_as_such(run: Run, program: Program, way: str) -> None:
    """In all reports, and with their whole length."""
    found = run(program, way)
    expected = Counter([*marked_steps(found), *automatic_steps(found)])
    for report in (found.chrome.report, found.profile_chrome.report, found.profile_report):
        assert Counter(report.steps) == expected


# --- helpers


def by_name(data: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of the table; those of equal times may be in any order."""
    return sorted(
        (row["name"], row["count"], row["total_us"], row["self_us"], row["self_share"])
        for row in data["by_name"]
    )


def without_samples(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The wall time of each thread, and its steps. A trace has runs of samples, whose times are
    rounded.
    """
    (wall,) = data["wall"]
    threads = [{**thread, "functions": []} for thread in wall["threads"]]
    return [{"wall_us": wall["wall_us"]}, *threads]


def marked_steps(found: Outputs) -> list[tuple[str, int]]:
    """The names and lengths of steps that are ranges: of ``step``, or a profiler's."""
    return [
        (
            event.name if event.step_number < 0 else f"{event.name}#{event.step_number}",
            event.duration_ns,
        )
        for event in found.events.values()
        if event.source.name == "STEP" or event.name.startswith(f"{STEP_IN_CHROME}#")
    ]


def automatic_steps(found: Outputs) -> list[tuple[str, int]]:
    """Those of training steps that nothing marks."""
    return [(each.name, each.end_ns - each.start_ns) for each in found.chrome.automatic_steps()]
