"""Perfetto opens the Chrome trace and sees in it what was recorded."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from helpers.perfetto_ui import ask_perfetto
from otel_recfn.model.events import EventFlag, RecordScope, RowKind, make_event_id
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = pytest.mark.one_python

SLICES = """
    select slice.name, slice.category, slice.ts, slice.dur, parent.name, thread.tid, thread.name
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    left join slice parent on slice.parent_id = parent.id
    order by slice.ts, slice.dur desc
"""
BESIDE = (
    "select slice.name, dur, pid from slice join process_track on track_id = process_track.id join"
    " process using (upid)"
)
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
NUMBERS = (
    "select int_value, string_value, real_value from args where key = 'args.{}' order by int_value"
)
NOW_NS = time.time_ns()  # Perfetto drops what is before a trace's base time
ODD = 'a "quoted"\nname\\ \x01\x7f é 😀'


def write(path: Path, *batches: list[dict[str, Any]]) -> None:
    writer = TraceWriter(path)
    for rows in batches:
        writer.write(make_batch(rows))
    writer.close()


def row(number: int, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    event_id = make_event_id(more.get("thread", MAIN_THREAD).number, number)
    return {
        "event_id": event_id,
        "name": name,
        "start_ns": NOW_NS + start,
        "end_ns": NOW_NS + end,
        **more,
    }


def test_slices_nest_to_the_nanosecond(path: Path) -> None:
    inner = [
        row(2, "first", 0, 333),
        row(3, "second", 333, 334),
        row(4, "empty", 334, 334),
        row(5, ODD, 335, 1001),
    ]
    write(path, inner, [row(1, "outer", 0, 1001), row(1, "elsewhere", 7, 9, thread=WORKER_THREAD)])
    slices, complaints = ask_perfetto(path, SLICES, COMPLAINTS)
    assert not complaints
    begin = slices[0][2]
    assert [(name, ts - begin, dur, parent) for name, _, ts, dur, parent, *_ in slices] == [
        ("outer", 0, 1001, None),
        ("first", 0, 333, "outer"),
        ("elsewhere", 7, 2, None),
        ("second", 333, 1, "outer"),
        ("empty", 334, 0, "outer"),
        (ODD, 335, 666, "outer"),
    ]
    assert {place[-2:] for place in slices} == {(1001, "MainThread"), (1002, "thread 1002")}


def test_what_ends_on_another_thread_overlaps_nothing(path: Path) -> None:
    crossing = row(1, "crossing", 0, 100, end_thread=WORKER_THREAD, flags=EventFlag.ASYNC)
    write(path, [crossing, row(2, "slice", 50, 200), row(3, "another", 250, 300)])
    slices, beside, complaints = ask_perfetto(
        path,
        SLICES,
        BESIDE,
        COMPLAINTS,
    )
    assert not complaints
    assert [(name, dur, parent) for name, _, _, dur, parent, *_ in slices] == [
        ("slice", 150, None),
        ("another", 50, None),
    ]
    assert beside == [("crossing", 100, os.getpid())]


def test_spans_nest_or_are_beside_the_threads(path: Path) -> None:
    """The third range begins in the second, which is open: what lies around it and the first
    would cut the second in two.
    """
    here = context(5, 6)
    there = context(8, 9)
    rows = [row(1, "first", 0, 10, context=here), row(3, "third", 30, 40, context=here)]
    write(path, rows, [row(2, "second", 20, 60, context=there)])
    slices, beside, complaints = ask_perfetto(path, SLICES, BESIDE, COMPLAINTS)
    assert not complaints
    names = {"first": None, f"span {9:016x}": None, "second": f"span {9:016x}", "third": "second"}
    assert {name: parent for name, *_, parent, _, _ in slices} == names
    assert beside == [(f"span {6:016x}", 40, os.getpid())]


def test_arrows_marks_and_arguments(path: Path) -> None:
    forward = row(
        1,
        "aten::mul",
        0,
        100,
        sequence_nr=7,
        shapes="[[2,3],[]]",
        dtypes='["float","Scalar"]',
        handle=1 << 62,
    )
    node = {
        "scope": RecordScope.BACKWARD_FUNCTION,
        "sequence_nr": 7,
        "forward_thread_id": 1,
        "thread": WORKER_THREAD,
    }
    backward = row(2, "MulBackward0", 200, 300, **node)
    mark = row(3, "a mark", 400, 400, kind=RowKind.MARK)
    write(path, [forward, backward, mark])
    arrows, marks, handles, shapes, complaints = ask_perfetto(
        path,
        "select a.name, b.name from flow join slice a on flow.slice_out = a.id join slice b on"
        " flow.slice_in = b.id",
        "select name, dur from slice where category = 'cpu_instant_event'",
        NUMBERS.format("External id"),
        "select key, int_value from args where flat_key like 'args.Input Dims%' order by key",
        COMPLAINTS,
    )
    assert not complaints
    assert arrows == [("aten::mul", "MulBackward0")]
    assert marks == [("a mark", 0)]
    assert (1 << 62, None, None) in handles
    assert [value for _, value in shapes] == [2, 3]


def test_no_slice_of_a_long_trace_is_a_nanosecond_off(path: Path) -> None:
    chance = random.Random(11)
    rows: list[dict[str, Any]] = []
    now = 0
    for number in range(0, 6000, 3):
        now += chance.randrange(1, 10_000_000)
        middle = now + chance.randrange(500)
        end = now + chance.randrange(500, 1000)
        outer = row(number + 1, f"outer {number}", now, end)
        rows += [
            row(number + 3, "inner", middle, end),
            row(number + 2, f"between {number}", now, end),
            outer,
        ]
        now = end
    write(path, rows[:3000], rows[3000:])
    slices, complaints = ask_perfetto(path, SLICES, COMPLAINTS)
    assert not complaints
    begin = slices[0][2]
    found = sorted((ts - begin, -dur, name, parent) for name, _, ts, dur, parent, *_ in slices)
    first = min(one["start_ns"] for one in rows)
    parents = {"outer": "", "between": "outer ", "inner": "between "}
    assert [(ts, dur, name) for ts, dur, name, _ in found] == sorted(
        (one["start_ns"] - first, one["start_ns"] - one["end_ns"], one["name"]) for one in rows
    )
    assert [one for one in found if not (one[3] or "").startswith(parents[one[2].split()[0]])] == []
    assert sum(parent is None for *_, parent in found) == 2000
