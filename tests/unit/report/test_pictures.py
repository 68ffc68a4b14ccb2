"""What a report shows: every range is in each picture, one by one or summed up, and the times
are exact.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recorded_ranges import Ran, process

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.errors import TraceFileError
from otel_recfn.model.columns import Track
from otel_recfn.model.events import EventFlag, EventSource, RowKind, make_event_id
from otel_recfn.report.finding import Finding
from otel_recfn.report.flame import flame, table
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report
from otel_recfn.report.timeline import timeline

pytestmark = pytest.mark.one_python

NAMES = ("a", "b", "c#1", "c#2")
Rows = list[dict[str, Any]]


def shown_in(page: str) -> dict[str, Any]:
    """What the page's script is given."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    shown: dict[str, Any] = json.loads(found[1])
    return shown


@st.composite
def programs(draw: st.DrawFn) -> Rows:
    """Ranges as threads run them: each lies in the one around it, or in one of another thread
    that launched it.
    """
    rows: Rows = []
    numbers = count(1)
    for thread in (MAIN_THREAD, WORKER_THREAD):
        launched_in = draw(st.sampled_from([0, *[row["event_id"] for row in rows]]))
        _run(
            draw,
            rows,
            numbers,
            (thread, BASE_NS, BASE_NS + draw(st.integers(1, 500)), launched_in),
            0,
        )
    assume(rows)
    return rows


def _run(
    draw: st.DrawFn,
    rows: Rows,
    numbers: Iterator[int],
    around: tuple[Track, int, int, int],
    depth: int,
) -> None:
    thread, begin, end, parent = around
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(begin, end))
        stop = draw(st.integers(start, end))
        event_id = make_event_id(thread.number, next(numbers))
        if depth < 4:
            _run(draw, rows, numbers, (thread, start, stop, event_id), depth + 1)
        row = {"event_id": event_id, "thread": thread, "parent": parent, "start_ns": start}
        flags = EventFlag.ASYNC if depth == 0 and draw(st.integers(0, 4)) == 0 else EventFlag.NONE
        rows.append({**row, "end_ns": stop, "name": draw(st.sampled_from(NAMES)), "flags": flags})
        begin = stop


def label(name: str) -> str:
    return name.partition("#")[0]


def paths_by_definition(rows: Rows) -> dict[tuple[str, ...], tuple[int, int]]:
    """Count and time by path, a range at a time; of asynchronous ones of a path, each nanosecond
    once.
    """
    known = {row["event_id"]: row for row in rows}
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    seen: dict[tuple[str, ...], set[int]] = {}
    for row in rows:
        path = [label(row["name"])]
        above = row["parent"]
        while above in known:
            path.insert(0, label(known[above]["name"]))
            above = known[above]["parent"]
        calls, total = found.get(tuple(path), (0, 0))
        moments = set(range(row["start_ns"], row["end_ns"]))
        if row["flags"]:
            moments -= seen.setdefault(tuple(path), set())
            seen[tuple(path)] |= moments
        found[tuple(path)] = calls + 1, total + len(moments)
    return found


@given(programs())
def test_the_flame_graph_has_every_path_with_its_sums(rows: Rows) -> None:
    shown = flame(Recording([Process("p", make_batch(rows))]), 1000)
    paths: list[tuple[str, ...]] = []
    for name, above in zip(shown["name"], shown["above"], strict=True):
        paths.append((*(paths[above] if above >= 0 else ()), shown["names"][name]))
    counts_and_totals = zip(shown["count"], shown["total"], strict=True)
    assert dict(zip(paths, counts_and_totals, strict=True)) == paths_by_definition(rows)


@given(programs(), st.integers(0, 12))
def test_what_a_small_flame_graph_leaves_out_is_summed_up(rows: Rows, most: int) -> None:
    columns = Recording([Process("p", make_batch(rows))])
    whole = flame(columns, 1000)
    small = flame(columns, most)
    for column in ("count", "self", "allocated"):
        assert sum(small[column]) == sum(whole[column])
    tops = [
        [total for total, above in zip(one["total"], one["above"], strict=True) if above < 0]
        for one in (whole, small)
    ]
    assert sum(tops[0]) == sum(tops[1])
    assert sum(name >= 0 for name in small["name"]) <= most


@given(programs(), st.integers(0, 12))
def test_the_time_line_has_every_range_one_by_one_or_packed(rows: Rows, most: int) -> None:
    shown = timeline(Recording([Process("p", make_batch(rows))]), most)
    single = sum(name >= 0 for name in shown["name"])
    assert single == min(most, len(rows))
    assert single + sum(shown["count"]) == len(rows)


@given(programs())
def test_boxes_of_a_row_stand_beside_each_other(rows: Rows) -> None:
    nested = [{**row, "flags": EventFlag.NONE} for row in rows]
    shown = timeline(Recording([Process("p", make_batch(nested))]), 1000)
    start = 0
    ends = dict[tuple[int, int], int]()
    for lane, depth, after, length in zip(
        shown["lane"], shown["depth"], shown["start"], shown["length"], strict=True
    ):
        start += after
        assert start >= ends.get((lane, depth), 0)
        ends[lane, depth] = start + length


@given(programs())
def test_the_table_has_every_name(rows: Rows) -> None:
    shown = table(Recording([Process("p", make_batch(rows))]), 100)
    assert dict(zip(shown["names"], shown["count"], strict=True)) == Counter(
        label(row["name"]) for row in rows
    )


def test_several_processes_are_frames_and_lanes_of_their_own() -> None:
    batch = make_batch([{"name": "step"}])
    shown = shown_in(Report([Process("rank 0", batch), Process("rank 1", batch)]).html())
    frames = shown["flame"]
    assert [shown["names"][name] for name in frames["name"]] == ["rank 0", "rank 1", "step", "step"]
    assert frames["total"] == [500, 500, 500, 500]
    assert [lane["process"] for lane in shown["timeline"]["lanes"]] == [0, 1]


def test_what_a_gpu_did_is_not_the_programs_time() -> None:
    batch = make_batch(
        [{"name": "launch"}, {"name": "gemm", "device": "GPU 0", "thread": WORKER_THREAD}]
    )
    shown = shown_in(Report([Process("p", batch)]).html())
    names = [shown["names"][name] for name in shown["flame"]["name"]]
    above = shown["flame"]["above"]
    assert names[above[names.index("gemm")]] == "on the GPU"
    assert above[names.index("launch")] == -1


def test_lanes_with_steps_stand_first_and_those_of_gpus_last() -> None:
    gpu = Track(3, 3, 3, 0, "stream 7")
    rows = [
        {"name": "gemm", "device": "GPU 0", "thread": gpu},
        {"name": "a", "thread": WORKER_THREAD},
        {"source": EventSource.STEP, "step_number": 1},
    ]
    shown = shown_in(
        Report([Process("p", make_batch(rows)), Process("q", make_batch(rows))]).html()
    )
    order = ["MainThread", "thread 1002", "stream 7"]
    assert [(lane["process"], lane["thread"]) for lane in shown["timeline"]["lanes"]] == [
        (p, name) for p in (0, 1) for name in order
    ]
    assert shown["timeline"]["lane"] == [0, 1, 2, 3, 4, 5]


def test_memory_counts_to_the_innermost_range() -> None:
    ids = [make_event_id(1, number) for number in (1, 2, 3)]
    memory = {
        "event_id": ids[2],
        "parent": ids[1],
        "kind": RowKind.MEMORY,
        "nbytes": 64,
        "name": "[memory]",
    }
    batch = make_batch(
        [
            memory,
            {**memory, "event_id": ids[2] + 1, "nbytes": -64},
            {"event_id": ids[1], "name": "op"},
        ]
    )
    shown = shown_in(Report([Process("p", batch)]).html())
    assert shown["flame"]["allocated"] == [64]
    assert shown["facts"]["memory"]


def test_the_time_line_has_the_memory_in_use() -> None:
    step = make_event_id(1, 9)
    reports = [
        {"kind": RowKind.MEMORY, "nbytes": nbytes, "name": "[memory]", "parent": step}
        for nbytes in (-8, 32, 64, -64)
    ]
    times = {"start_ns": BASE_NS, "end_ns": BASE_NS + 4000}
    rows = [*reports, {"event_id": step, "source": EventSource.STEP, **times}]
    shown = timeline(Recording([Process("p", make_batch(rows))]), 100)
    assert shown["memory"] == [
        {"process": 0, "at": [0, 1000, 2000, 3000], "bytes": [0, 32, 96, 32]}
    ]
    assert timeline(Recording([Process("p", make_batch([{}]))]), 100)["memory"] == []


def test_the_longest_call_has_its_place_in_the_time_line() -> None:
    rows = [
        {"name": name, "start_ns": BASE_NS + at, "end_ns": BASE_NS + at + length}
        for name, at, length in [("a", 0, 5), ("b", 10, 9), ("a", 20, 7), ("a", 30, 6)]
    ]
    shown = shown_in(Report([Process("p", make_batch(rows))]).html())
    for picture in (shown["flame"], shown["table"]):
        found = dict(zip(picture["name"], picture["longest_at"], strict=True))
        assert {shown["names"][name]: at for name, at in found.items()} == {"a": 20, "b": 10}


def test_steps_are_listed_the_slowest_first() -> None:
    rows = [
        {
            "name": "train",
            "source": EventSource.STEP,
            "step_number": number,
            "start_ns": BASE_NS + 100 * number,
            "end_ns": BASE_NS + 100 * number + length,
        }
        for number, length in enumerate([40, 90, 50])
    ]
    shown = shown_in(Report([Process("p", make_batch(rows))]).html())
    assert [(step["name"], step["start"], step["wall"]) for step in shown["steps"]] == [
        ("train#1", 100, 90),
        ("train#2", 200, 50),
        ("train#0", 0, 40),
    ]
    assert shown["steps"][0]["outside"] == 90


def test_steps_are_told_by_their_numbers() -> None:
    batch = make_batch(
        [
            {"name": "train", "source": EventSource.STEP, "step_number": number}
            for number in range(3)
        ]
    )
    shown = shown_in(Report([Process("p", batch)]).html())
    assert shown["flame"]["count"] == [3]
    assert shown["timeline"]["step"] == [0, 1, 2]


def test_findings_stand_in_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(
        "It waits for data", "70 % of the time", 0.7, "Load ahead.", ("step", "load"), True
    )
    monkeypatch.setattr(Report, "findings", [finding])
    shown = shown_in(Report([Process("p", make_batch([{}]))]).html())
    assert shown["findings"] == [{**finding._asdict(), "anchor": ["step", "load"]}]


@pytest.mark.parametrize(("count", "length"), [(20_000, 10), (4000, 5000)])
def test_a_page_is_small_whatever_was_recorded(count: int, length: int) -> None:
    rows = [{"name": f"{number} ".ljust(length, "\u4e2d"), "parent": 0} for number in range(count)]
    page = Report([Process("p", make_batch(rows))]).html()
    assert len(page) <= 2_000_000
    assert sum(shown_in(page)["flame"]["count"]) == count
    assert len(Report([Process("p", make_batch(rows))]).html(300_000)) <= 300_000


def test_what_is_long_is_short_everywhere_in_the_page() -> None:
    long = "x" * 1_000_000
    asks = Ran("aten::item", 1000, (), {"stack": long})
    page = Report(
        [process(Ran(long, 90_000, (asks,) * 40), thread=MAIN_THREAD._replace(name=long))]
    ).html()
    assert len(page) < 100_000
    (finding,) = shown_in(page)["findings"]
    assert finding["code"] == finding["anchor"][0]
    assert {*finding["anchor"]} <= {*shown_in(page)["names"]}


NASTY = "</script><img src=x onerror=alert(1)><!--<script>\u2028&amp;@@script@@\ud800"


def test_a_name_cannot_leave_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Report, "findings", [Finding(NASTY, NASTY, 1, NASTY, (NASTY,))])
    batch = make_batch([{"name": NASTY, "stack": NASTY, "module": NASTY}])
    page = Report([Process(NASTY, batch), Process("q", batch)], NASTY, [NASTY]).html()
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script") == 2
    assert NASTY in shown_in(page)["names"]
    assert page.isascii()


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(TraceFileError, match="no ranges to show"):
        Report([Process("p", make_batch([{"kind": RowKind.MARK}]))])
