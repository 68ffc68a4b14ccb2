"""Each range is counted once, and counters balance."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import outputs_programs as programs  # noqa: E402
from output_laws import Run, everywhere, own_spans  # noqa: E402
from outputs_programs import Program  # noqa: E402

from otel_recfn import profile  # noqa: E402

pytestmark = pytest.mark.torch


# --- counts


@everywhere()
def test_each_range_of_the_chrome_trace_is_a_span_or_folded_or_unsampled(
    run: Run, program: Program, way: str
) -> None:
    found = run(program, way)
    folded = sum(span.attributes.get("recfn.unit.folded.count", 0) for span in own_spans(found))
    assert len(found.chrome.ranges()) == len(found.single) + folded + found.counters["unsampled"]
    assert found.counters["folded"] == folded


LOSSES = ("dropped.buffer_full", "dropped.queue_full", "dropped.shutdown", "dropped.error")


@everywhere()
def test_counters_balance(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    counters = run(program, way).counters
    became = ("exported", "folded", "unsampled", "waiting", "failed", *LOSSES)
    assert counters["recorded"] + counters["added"] == sum(counters[name] for name in became)
    assert not {
        name: count
        for name, count in counters.items()
        if count and ("dropped" in name or name in ("waiting", "failed"))
    }
    ours = [span for span in own_spans(found) if span.is_ours]
    alone = [span for span in ours if not span.event_id]
    assert counters["recorded"] == len(found.events)
    assert counters["added"] == len(alone)
    assert counters["exported"] == len(ours)
    outcomes = {**counters, "dropped": sum(counters[name] for name in LOSSES)}
    for point in found.metrics["recfn.ranges"]:
        assert point.value == outcomes[point.attributes["recfn.outcome"]]


@everywhere()
def test_the_profile_counts_what_it_has(run: Run, program: Program, way: str) -> None:
    found = run(program, way)
    assert found.profile.counters()["recorded"] == len(found.profile.events())
    assert not found.profile.lost
    assert not found.legacy.lost


# --- Counts


@pytest.mark.parametrize("program", [programs.sampling, programs.steps_by_hand])
def test_recorded_counts_each_range_whatever_was_sampled(run: Run, program: Program) -> None:
    found = run(program)
    assert found.counters["recorded"] == len(found.chrome.ranges())


def test_averages_are_those_of_torch_profiler() -> None:
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu]) as theirs, profile(modules=False) as ours:
        programs.operators_that_call_their_own_name()
    counts = {each.key: each.count for each in ours.key_averages()}
    assert counts == {each.key: each.count for each in theirs.key_averages()}


@pytest.mark.parametrize("way", ["defaults", "defaults by OTLP", "few spans", "low"])
@pytest.mark.parametrize("program", [programs.many_failures, programs.errors])
def test_a_unit_says_how_many_of_its_ranges_failed(run: Run, program: Program, way: str) -> None:
    """By the exception that left them, or, of operators, by nothing more than that."""
    found = run(program, way)
    failed = sum(found.has(event_id, "ERROR") for event_id in found.events)
    assert failed
    assert [
        said for span in found.spans if (said := span.attributes.get("recfn.unit.failed.count"))
    ] == [failed]
