"""Training steps that nobody marked, in Chrome traces: slices that end with an optimizer's step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.model.columns import NO_CONTEXT
from otel_recfn.model.events import EventFlag, EventSource, make_event_id
from otel_recfn.sinks.chrome.automatic_steps import IDLE_NS, AutomaticSteps
from otel_recfn.sinks.chrome.writer import TraceWriter
from otel_recfn.support.seen_spans import seen_spans
from trace_files import events_in

pytestmark = pytest.mark.one_python

OPTIMIZER = "Optimizer.step#SGD.step"
Row = dict[str, Any]


def row(
    number: int, start: int, end: int, name: str = "aten::mm", parent: int = 0, **more: Any
) -> Row:
    thread = more.get("thread", MAIN_THREAD).number
    ids = {
        "event_id": make_event_id(thread, number),
        "parent": parent and make_event_id(thread, parent),
    }
    return {
        **ids,
        "root": make_event_id(thread, parent or number),
        "start_ns": start,
        "end_ns": end,
        "name": name,
        **more,
    }


def steps_of(*batches: list[Row]) -> list[tuple[str, int, int, int]]:
    """Those that are over, then those that aren't: name, thread, start and end."""
    state, found = AutomaticSteps(), []
    for rows in batches:
        found += state.add(make_batch(rows))
    return [(one.name, one.track.number, one.start_ns, one.end_ns) for one in found + state.open()]


def training(steps: int, optimizers: int = 1) -> list[Row]:
    """Two operators and what the optimizers do, each step."""
    names = ["aten::mm", "aten::mm", *[OPTIMIZER] * optimizers] * steps
    return [
        row(number + 1, 10 * number, 10 * number + 8, name) for number, name in enumerate(names)
    ]


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_step_ends_with_the_optimizers_and_the_next_one_begins_after_it(optimizers: int) -> None:
    took = 10 * (2 + optimizers)
    expected = [(f"ProfilerStep#{n}", 1, took * n, took * (n + 1) - 1) for n in range(3)]
    assert steps_of(training(3, optimizers)) == expected


@given(cuts=st.sets(st.integers(1, 11)))
def test_batches_may_end_anywhere(cuts: set[int]) -> None:
    rows, places = training(4), [0, *sorted(cuts), 12]
    assert steps_of(*[rows[first:last] for first, last in pairwise(places)]) == steps_of(rows)


def test_a_range_in_which_an_optimizer_steps_is_a_step_also_when_it_ends_later() -> None:
    inner, outer, after = (
        row(2, 12, 14, OPTIMIZER, parent=1),
        row(1, 10, 20, "train"),
        row(3, 30, 40),
    )
    assert (
        steps_of([inner], [outer], [after])
        == steps_of([inner, outer, after])
        == [("ProfilerStep#0", 1, 10, 21)]
    )


def test_each_thread_has_steps_of_its_own() -> None:
    rows = [row(1, 10, 20, OPTIMIZER), row(1, 15, 30, OPTIMIZER, thread=WORKER_THREAD)]
    assert sorted(steps_of(rows)) == [("ProfilerStep#0", 1, 10, 21), ("ProfilerStep#0", 2, 15, 31)]


def test_what_ran_before_a_rest_is_not_in_the_step() -> None:
    late = 100 + IDLE_NS
    assert steps_of(
        [row(1, 10, 20), row(2, late, late + 10), row(3, late + 20, late + 30, OPTIMIZER)]
    ) == [("ProfilerStep#0", 1, late, late + 31)]


@pytest.mark.parametrize(
    "marked",
    [{"name": "train", "source": EventSource.STEP}, {"name": "ProfilerStep#3"}],
    ids=["step", "of a profiler"],
)
def test_nothing_is_added_to_steps_that_the_program_marks(marked: Row) -> None:
    inner, outer = row(2, 12, 18, OPTIMIZER, parent=1), row(1, 10, 20, **marked)
    assert steps_of([inner, outer]) == []
    assert steps_of([inner, outer, row(3, 30, 40), row(4, 50, 60, OPTIMIZER)]) == [
        ("ProfilerStep#0", 1, 30, 61)
    ]


@pytest.mark.parametrize(
    "other",
    [{"flags": EventFlag.ASYNC}, {"name": "aten::mm"}],
    ids=["async", "no optimizer"],
)
def test_ranges_that_are_no_steps(other: Row) -> None:
    assert steps_of([row(1, 10, 20, **{"name": OPTIMIZER, **other})]) == []


EPOCH, INNER, OTHER = context(5, 1000), context(5, 1001), context(6, 1002)


class Span(SimpleNamespace):
    """Which one may have a weak reference to."""


def spans() -> dict[tuple[int, int], Any]:
    return {
        EPOCH[:2]: Span(name="epoch", parent=None, end_time=None),
        INNER[:2]: Span(name="inner", parent=EPOCH, end_time=None),
        OTHER[:2]: Span(name="other", parent=None, end_time=None),
    }


@given(
    st.lists(st.tuples(st.sampled_from([NO_CONTEXT, EPOCH, INNER, OTHER]), st.sampled_from(["aten::mm", OPTIMIZER]),
                       st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=14),
    st.sets(st.integers(1, 13)),
    st.booleans(),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slices_of_a_track_nest_whatever_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ran: list[tuple[Any, str, int, int]],
    cuts: set[int],
    timed: bool,
) -> None:
    known, time, rows = spans(), BASE_NS, list[Row]()
    for number, (ran_in, name, pause, lasts) in enumerate(ran, 1):
        time += pause
        rows.append(row(number, time, time + lasts, name, context=ran_in))
        time += lasts
    for key, one in known.items():
        own = [each for each in rows if each["context"][:2] == key]
        if timed and own:
            one.end_time = own[-1]["end_ns"] + 1
    monkeypatch.setattr(seen_spans, "_spans", known)
    writer, places = (
        TraceWriter(tmp_path / "trace.json"),
        [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)],
    )
    for first, last in pairwise(places):
        writer.write(make_batch(rows[first:last]))
    writer.close()
    slices = events_in(tmp_path / "trace.json", "X")
    steps = sum(1 for one in slices if one["name"].startswith("ProfilerStep#"))
    assert bool(steps) == any(name == OPTIMIZER for _, name, _, _ in ran)
    for tid in {one["tid"] for one in slices}:
        ends: list[Any] = []
        for start, minus in sorted((one["ts"], -one["dur"]) for one in slices if one["tid"] == tid):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - minus <= ends[-1]
            ends.append(start - minus)


def test_a_step_begins_anew_in_another_span_of_the_programs() -> None:
    rows = [
        row(1, 10, 20, context=INNER),
        row(2, 30, 40, context=OTHER),
        row(3, 50, 60, OPTIMIZER, context=OTHER),
    ]
    after = [row(4, 70, 80, context=INNER), row(5, 90, 99, OPTIMIZER, context=OTHER)]
    assert (
        steps_of(rows, after)
        == steps_of([*rows, *after])
        == [("ProfilerStep#0", 1, 30, 60), ("ProfilerStep#1", 1, 90, 100)]
    )


def test_a_trace_has_them_around_their_ranges(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    writer = TraceWriter(path)
    rows = [
        one | {"start_ns": BASE_NS + one["start_ns"], "end_ns": BASE_NS + one["end_ns"]}
        for one in training(2)
    ]
    writer.write(make_batch(rows[:4]))
    writer.write(make_batch(rows[4:]))
    writer.close()
    slices = events_in(path, "X")
    steps = [one for one in slices if one["name"].startswith("ProfilerStep#")]
    assert [(one["name"], one["cat"], one["dur"] * 1000, one["args"]) for one in steps] == [
        ("ProfilerStep#0", "user_annotation", 29, {"recfn.step.number": 0}),
        ("ProfilerStep#1", "user_annotation", 29, {"recfn.step.number": 1}),
    ]
    assert {one["tid"] for one in slices} == {steps[0]["tid"]}
