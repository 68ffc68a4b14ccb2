"""The Chrome trace writer: what is in the file."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.model.events import EventFlag, RecordScope, make_event_id
from otel_recfn.sinks.chrome.writer import TraceWriter
from trace_files import base_ns, events_in, read_trace

pytestmark = pytest.mark.one_python

BACKWARD = RecordScope.BACKWARD_FUNCTION


def test_a_new_sink_leaves_an_empty_trace(writer: TraceWriter, path: Path) -> None:
    assert {event["ph"] for event in events_in(path)} == {"M"}
    writer.close()
    trace = read_trace(path)
    assert trace["schemaVersion"] == 1
    assert trace["host_name"] == socket.gethostname()
    assert trace["distributedInfo"] == {"backend": "", "rank": 0, "world_size": 1}
    assert {event["ph"] for event in trace["traceEvents"]} == {"M"}


def test_the_rank_is_that_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    TraceWriter(tmp_path / "trace.json").close()
    assert read_trace(tmp_path / "trace.json")["distributedInfo"] == {"backend": "", "rank": 3, "world_size": 8}


def test_no_nanosecond_is_lost_on_the_way_through_a_double(writer: TraceWriter, path: Path) -> None:
    start_ns = time.time_ns() // 1000 * 1000 + 789
    writer.write(make_batch([{"start_ns": start_ns, "end_ns": start_ns + 1_000_000_000_001}]))
    [event] = events_in(path, "X")
    assert base_ns() + round(float(event["ts"]) * 1000) == start_ns
    assert round(float(event["dur"]) * 1000) == 1_000_000_000_001


def test_batches_larger_than_one_encoding_are_complete(writer: TraceWriter, path: Path) -> None:
    writer.write(make_batch([{"name": f"op {n % 7}"} for n in range(10_000)]))
    assert sorted(event["args"]["Event id"] for event in events_in(path, "X")) == [
        make_event_id(1, n + 1) for n in range(10_000)
    ]
    assert writer.failed == 0


class TestMetadata:
    def test_process_and_threads_have_names(self, writer: TraceWriter, path: Path) -> None:
        writer.write(make_batch([{}, {"thread": WORKER_THREAD}]))
        names = [(event["name"], event["tid"], event["args"]) for event in events_in(path, "M")]
        assert [name for name, _, _ in names[:3]] == ["process_name", "process_labels", "process_sort_index"]
        assert ("thread_name", 1001, {"name": "MainThread"}) in names
        assert ("thread_name", 1002, {"name": "thread 1002"}) in names
        assert ("thread_sort_index", 1002, {"sort_index": 2}) in names
        assert {event["pid"] for event in events_in(path, "M")} == {os.getpid()}

    def test_a_name_is_written_once_and_again_when_it_becomes_known(self, writer: TraceWriter, path: Path) -> None:
        for name in ("", "", "loader"):
            writer.write(make_batch([{"thread": WORKER_THREAD._replace(name=name)}]))
        found = [event["args"]["name"] for event in events_in(path, "M") if event["name"] == "thread_name"]
        assert found == ["thread 1002", "loader"]

    def test_the_thread_that_only_ended_a_range_has_a_name_too(self, writer: TraceWriter, path: Path) -> None:
        writer.write(make_batch([{"end_thread": WORKER_THREAD}]))
        assert 1002 in {event["tid"] for event in events_in(path, "M") if event["name"] == "thread_name"}


class TestArrows:
    def test_from_the_start_of_the_forward_slice_to_the_start_of_the_backward_slice(
        self, writer: TraceWriter, path: Path
    ) -> None:
        forward = {"sequence_nr": 4, "start_ns": BASE_NS + 10}
        backward = {"sequence_nr": 4, "forward_thread_id": 1, "scope": BACKWARD, "thread": WORKER_THREAD}
        writer.write(make_batch([forward]))
        writer.write(make_batch([{**backward, "start_ns": BASE_NS + 900}]))
        [start], [end] = events_in(path, "s"), events_in(path, "f")
        forward_slice, backward_slice = events_in(path, "X")
        for arrow, piece in ((start, forward_slice), (end, backward_slice)):
            assert (arrow["cat"], arrow["name"], arrow["id"]) == ("fwdbwd", "fwdbwd", 1)
            assert [arrow[key] for key in ("pid", "tid", "ts")] == [piece[key] for key in ("pid", "tid", "ts")]
        assert end["bp"] == "e"

    def test_numbers_are_unique_across_batches(self, writer: TraceWriter, path: Path) -> None:
        for step in range(3):
            rows: list[dict[str, Any]] = [{"sequence_nr": 2 * step + n} for n in range(2)]
            rows += [{"sequence_nr": 2 * step + n, "forward_thread_id": 1, "scope": BACKWARD} for n in range(2)]
            writer.write(make_batch(rows))
        assert [event["id"] for event in events_in(path, "s")] == [1, 2, 3, 4, 5, 6]

    def test_none_to_what_is_no_slice(self, writer: TraceWriter, path: Path) -> None:
        backward = {"sequence_nr": 4, "forward_thread_id": 1, "scope": BACKWARD, "flags": EventFlag.ASYNC}
        writer.write(make_batch([{"sequence_nr": 4}, backward]))
        assert events_in(path, "f") == []


def test_slices_of_a_thread_never_overlap(writer: TraceWriter, path: Path) -> None:
    """Also with async ranges, with parents that end in a later batch, and with ranges of the same moments as their parents."""
    chance = random.Random(5)
    rows: list[dict[str, Any]] = []
    for thread in (MAIN_THREAD, WORKER_THREAD):
        rows += _random_tree(chance, thread)
    rows.sort(key=lambda row: row["end_ns"])
    for first in range(0, len(rows), 37):
        writer.write(make_batch(rows[first : first + 37]))
    assert len(events_in(path, "X")) + len(events_in(path, "b")) == len(rows)
    by_thread = defaultdict(list)
    for number, event in enumerate(events_in(path, "X")):
        by_thread[event["tid"]].append((event["ts"], -event["dur"], number))
    for slices in by_thread.values():
        _assert_nested(sorted(slices))


def _random_tree(chance: random.Random, thread: Any) -> list[dict[str, Any]]:
    """Nested ranges, children before parents; some are async and last until anywhere."""
    rows: list[dict[str, Any]] = []
    ordinal = iter(range(1, 10_000))

    def grow(start_ns: int, depth: int) -> int:
        row = {"thread": thread, "event_id": make_event_id(thread.number, next(ordinal)), "start_ns": start_ns}
        now = start_ns + chance.randrange(3)
        for _ in range(chance.randrange(4) if depth else 0):
            now = grow(now, depth - 1) + chance.randrange(2)
        if chance.random() < 0.1:
            rows.append({**row, "end_ns": now + 50, "flags": EventFlag.ASYNC, "end_thread": WORKER_THREAD})
        else:
            rows.append({**row, "end_ns": now})
        return now

    now = BASE_NS
    for _ in range(40):
        now = grow(now, 4)
    return rows


def _assert_nested(slices: list[tuple[Decimal, Decimal, int]]) -> None:
    open_ends: list[Decimal] = []
    for start, minus_duration, _ in slices:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        end = start - minus_duration
        assert not open_ends or end <= open_ends[-1], f"[{start}, {end}] overlaps a slice that ends at {open_ends[-1]}"
        open_ends.append(end)


def test_a_parent_stands_before_its_children_of_the_same_moment(writer: TraceWriter, path: Path) -> None:
    child = {"name": "child", "event_id": make_event_id(1, 2), "parent": make_event_id(1, 1), "start_ns": BASE_NS}
    writer.write(make_batch([child, {"name": "parent", "event_id": make_event_id(1, 1), "start_ns": BASE_NS}]))
    assert [event["name"] for event in events_in(path, "X")] == ["parent", "child"]
