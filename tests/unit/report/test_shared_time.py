"""The time of a run, shared among its threads: on generated traces, as torch.profiler writes them,
with threads, slices in each other, and arrows from forward operators to backward nodes.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.shared_time import Slice, time_by_work
from otel_recfn.report.files import read_processes
from otel_recfn.report.kinds import WORKS
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report

NAMES = {
    "Other operators": ("aten::mm", "cpu_op"),
    "Calls of modules": ("nn.Module: Net_0", "python_function"),
    "Backward passes": ("autograd::engine::evaluate_function: MmBackward0", "cpu_op"),
    "Optimizers": ("Optimizer.step#SGD.step", "user_annotation"),
    "Python": ("train.py(1): run", "python_function"),
    "": ("block", "user_annotation"),
}
THREADS = st.integers(1, 4)
Arrow = tuple[int, int, int]
"""The threads of a forward operator and of its node, and when that begins."""
SENTENCE = re.compile(r"(.+?) took (\d+)% of the time, ")


@st.composite
def slices_in(draw: st.DrawFn, thread: int, begin: int, end: int, depth: int) -> list[Slice]:
    """The slices of a thread between two moments, with pauses between them."""
    found = list[Slice]()
    at = begin
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(at, end))
        last = draw(st.integers(first, end))
        if last > first:
            found.append(Slice(thread, draw(st.sampled_from(list(NAMES))), first, last))
            if depth:
                found += draw(slices_in(thread, first, last, depth - 1))
        at = last
    return found


@st.composite
def runs(draw: st.DrawFn) -> list[Slice]:
    """The slices of up to four threads."""
    threads = draw(st.integers(1, 4))
    found = list[Slice]()
    for thread in range(1, threads + 1):
        found += draw(slices_in(thread, 0, draw(st.integers(10, 50_000)), 3))
    return found or [Slice(1, "Python", 0, 10)]


def as_events(run: list[Slice]) -> list[dict[str, Any]]:
    events = list[dict[str, Any]]()
    for thread, work, begin, end in run:
        name, category = NAMES[work]
        times = {"pid": 1, "tid": thread, "ts": begin, "dur": end - begin}
        events.append({"ph": "X", "name": name, "cat": category, **times, "args": {}})
    return events


def recorded(events: list[dict[str, Any]]) -> Recording:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        return Recording(read_processes([path]))


def assert_no_moment_counts_twice(seen: Recording) -> list[tuple[str, int]]:
    sentences = json.loads(Report(seen.processes).text("json"))["what_took_the_time"]
    shares = [(found[1], int(found[2])) for text in sentences if (found := SENTENCE.match(text))]
    assert len(shares) == len(sentences)
    assert sum(share for _, share in shares) == 100
    shared = seen.shared_time
    assert shared.own_ns.min() >= 0
    assert shared.own_ns.sum() <= shared.whole_ns + 1
    assert (shared.own_ns <= seen.self_ns + 1).all()
    for lane in np.unique(seen.lane).tolist():
        lane_ranges = seen.lane == lane
        assert (
            seen.self_ns[lane_ranges].sum()
            <= seen.end_ns[lane_ranges].max() - seen.start_ns[lane_ranges].min()
        )
    return shares


@settings(max_examples=100, deadline=None)
@given(runs())
def test_each_work_has_the_time_that_it_has_moment_by_moment(run: list[Slice]) -> None:
    seen = recorded(as_events(run))
    assert_no_moment_counts_twice(seen)
    expected, whole_us = time_by_work(run)
    assert seen.run_ns == pytest.approx(float(whole_us) * 1000, abs=1)
    found = Counter[str]()
    for number, ns in zip(seen.work.tolist(), seen.shared_time.own_ns.tolist(), strict=True):
        work = WORKS[number].replace("Python functions", "Python")
        found[work.replace("Your own ranges", "")] += ns
    assert {work: ns for work, ns in found.items() if ns} == {
        work: pytest.approx(float(us) * 1000) for work, us in expected.items() if us
    }


@settings(max_examples=100, deadline=None)
@given(runs(), st.lists(st.tuples(THREADS, THREADS, st.integers(0, 50_000)), max_size=6))
def test_nor_counts_twice_where_autograd_has_the_work(
    run: list[Slice], arrows: list[Arrow]
) -> None:
    events = as_events(run)
    for number, (forward, backward, at) in enumerate(arrows):
        arrow = {"id": number, "pid": 1, "cat": "fwdbwd", "name": "fwdbwd"}
        events.append({"ph": "s", "tid": forward, "ts": 0, **arrow})
        events.append({"ph": "f", "tid": backward, "ts": at, "bp": "e", **arrow})
    assert_no_moment_counts_twice(recorded(events))


def test_a_backward_pass_isnt_also_the_time_of_the_call_that_waits_for_it() -> None:
    run = [
        Slice(1, "Python", 0, 2000),
        Slice(1, "Other operators", 0, 1000),
        Slice(1, "Python", 1000, 2000),
        Slice(2, "Backward passes", 1010, 1990),
    ]
    assert assert_no_moment_counts_twice(recorded(as_events(run))) == [
        ("Other operators", 50),
        ("Backward passes", 49),
        ("Python functions", 1),
    ]


@pytest.mark.parametrize("work", ["Python", ""])
@pytest.mark.parametrize("waiting", [1, 9])
def test_threads_that_only_wait_change_no_share(waiting: int, work: str) -> None:
    run = [Slice(1, "Python", 0, 1_000_000)]
    run += [Slice(1, "Other operators", at, at + 6000) for at in range(0, 1_000_000, 10_000)]
    shares = assert_no_moment_counts_twice(recorded(as_events(run)))
    run += [Slice(thread, work, 0, 1_000_000) for thread in range(2, 2 + waiting)]
    assert assert_no_moment_counts_twice(recorded(as_events(run))) == shares
    assert shares == [("Other operators", 60), ("Python functions", 40)]


def test_threads_that_work_at_once_share_the_moment() -> None:
    run = [Slice(1, "Other operators", 0, 1000)]
    run += [Slice(2, "Calls of modules", 0, 1000), Slice(3, "Calls of modules", 500, 1000)]
    assert assert_no_moment_counts_twice(recorded(as_events(run))) == [
        ("Calls of modules", 58),
        ("Other operators", 42),
    ]


def test_a_run_without_a_thread_that_works_has_the_time_of_all() -> None:
    run = [Slice(1, "Python", 0, 1000), Slice(2, "Python", 500, 1500)]
    assert assert_no_moment_counts_twice(recorded(as_events(run))) == [("Python functions", 100)]
