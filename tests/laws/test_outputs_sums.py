"""Sums by name are equal in all outputs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from output_laws import Run, everywhere, times
from output_readers import shown_name, sums_by_name
from output_relations import union_ns
from output_values import Sums, SumsByName, overlaps
from outputs import WAYS
from outputs_programs import Program

pytestmark = pytest.mark.torch
NUMBERED = re.compile(r"(.+)#\d+")


@everywhere()
def test_tables_have_the_sums_of_the_events(run: Run, program: Program, way: str) -> None:
    """Count, length and self time by name."""
    found = run(program, way)
    events = found.sums["profile's events"]
    uncounted = alone_in_one_of_their_name(found.profiled)
    counted = sums_by_name(
        event for event_id, event in found.profiled.items() if event_id not in uncounted
    )
    assert not unequal(found.sums["averages"], counted)
    own = {name: each.self_ns or 0 for name, each in events.items()}
    assert {
        each.key: each.self_cpu_time_total * 1000 for each in found.profile.key_averages()
    } == pytest.approx(own)
    assert not unequal(found.sums["tree"], events)
    assert not unequal(found.sums["report of the profile"], by_label(events))
    legacy = {
        each.key: Sums(each.count, each.cpu_time_total * 1000, None)
        for each in found.legacy.key_averages()
    }
    pushed = defaultdict[str, Sums](Sums)
    for event_id, each in found.said["legacy profiler"].items():
        if each.end_ns is not None and event_id not in uncounted:
            pushed[str(each.name)].count += 1
            pushed[str(each.name)].total_ns += each.end_ns - each.start_ns
    assert not unequal(legacy, pushed)


@everywhere()
def test_trees_by_thread_and_module_have_all_of_the_time(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    whole_us = sum(sums.self_ns or 0 for sums in found.sums["profile's events"].values()) / 1000
    assert found.profile.key_averages().self_cpu_time_total == pytest.approx(whole_us)
    for by in ("thread", "module"):
        assert sum(path.self_cpu_time_total for path in found.profile.tree(by)) == pytest.approx(
            whole_us
        )
    assert sum(path.count for path in found.profile.tree("thread")) == len(found.events)


@everywhere()
def test_self_times_are_lengths_without_what_nests_directly_in_a_range(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    expected = {
        event_id: 0 if overlaps(event) else event.duration_ns
        for event_id, event in found.profiled.items()
    }
    for event in found.profiled.values():
        around = found.profiled.get(event.parent)
        if (
            around is not None
            and around.thread == event.thread
            and not overlaps(event)
            and not overlaps(around)
        ):
            expected[around.event_id] -= event.duration_ns
    assert {event_id: event.self_ns for event_id, event in found.profiled.items()} == expected


@everywhere(without=["tasks_that_interleave"])
def test_self_times_of_a_thread_are_no_more_than_its_time(
    run: Run, program: Program, way: str
) -> None:
    """Than that in which any range of it was open.

    A range of a task that waits has the time for itself in which another task works.
    """
    found = run(program, way)
    for events in by_thread(found.profiled.values()).values():
        assert sum(event.self_ns for event in events) <= union_ns(
            [times(event) for event in events]
        )


@everywhere()
def test_reports_of_chrome_traces_have_the_counts_and_lengths_of_the_events(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    events = by_label(sums_by_name(found.events.values()))
    assert not unequal(without_self_times(found.chrome.report.sums), events)
    assert found.chrome.report.sums.keys() == events.keys()
    events = by_label(sums_by_name(found.profiled.values()))
    assert not unequal(without_self_times(found.profile_chrome.report.sums), events)


@everywhere()
def test_reports_of_chrome_traces_have_the_self_times_of_the_profile(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    expected = by_label(found.sums["profile's events"])
    assert not unequal(found.profile_chrome.report.sums, expected)


@everywhere()
def test_the_metric_has_the_sums_of_all_ranges(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    has_torch_names = WAYS[way].settings.get("span_names") == "torch"

    def name_of(event: Any) -> str:
        return str(event.name) if has_torch_names else shown_name(event)

    expected = sums_by_name(found.events.values(), name_of=name_of)
    assert not unequal(found.sums["metric"], expected)
    assert set(found.sums["metric"]) == set(expected)
    for point in found.metrics["recfn.operation.duration"]:
        lengths = [
            event.duration_ns
            for event in found.events.values()
            if (name_of(event), event.scope.name)
            == (point.attributes["recfn.name"], point.attributes["recfn.scope"])
        ]
        assert (point.count, sum(point.bucket_counts)) == (len(lengths), len(lengths))
        assert (round(point.min * 1e9), round(point.max * 1e9)) == (min(lengths), max(lengths))


# --- helpers


def unequal(one: SumsByName, expected: SumsByName) -> list[str]:
    """The names with other sums than expected, as far as both say something.

    ``one`` may have further names, as of spans.
    """
    found = []
    for name, sums in expected.items():
        own = one.get(name)
        if own is None or own.count != sums.count:
            found.append(f"{name}: {own.count if own else 0} and not {sums.count}")
            continue
        tolerance = 1 + sums.count  # nanoseconds: tables are in microseconds, as floats
        if abs(own.total_ns - sums.total_ns) > tolerance:
            found.append(f"{name}: {own.total_ns:.0f} ns long, not {sums.total_ns:.0f}")
        if (
            own.self_ns is not None
            and sums.self_ns is not None
            and abs(own.self_ns - sums.self_ns) > tolerance
        ):
            found.append(f"{name}: {own.self_ns:.0f} ns itself, not {sums.self_ns:.0f}")
    return found


def by_label(sums: SumsByName) -> SumsByName:
    """As reports have them: of names that differ by a number, one."""
    found = defaultdict[str, Sums](Sums)
    for name, each in sums.items():
        numbered = NUMBERED.fullmatch(name)
        one = found[numbered[1] if numbered else name]
        one.count += each.count
        one.total_ns += each.total_ns
        one.self_ns = (
            one.self_ns + each.self_ns
            if one.self_ns is not None and each.self_ns is not None
            else None
        )
    return found


def alone_in_one_of_their_name(events: Mapping[int, Any]) -> set[int]:
    """The ranges that aren't counted, as in torch.profiler: one call of an operator that has one
    of its name do its work. Calls of modules all count.
    """
    children = Counter(
        event.cpu_parent.event_id for event in events.values() if event.cpu_parent is not None
    )
    return {
        event_id
        for event_id, event in events.items()
        if event.cpu_parent is not None
        and event.source.name != "MODULE"
        and event.cpu_parent.name == event.name
        and children[event.cpu_parent.event_id] == 1
    }


def without_self_times(sums: SumsByName) -> SumsByName:
    return {name: Sums(each.count, each.total_ns, None) for name, each in sums.items()}


def by_thread(events: Iterable[Any]) -> dict[int, list[Any]]:
    found = defaultdict[int, list[Any]](list)
    for event in events:
        found[event.thread.number].append(event)
    return found
