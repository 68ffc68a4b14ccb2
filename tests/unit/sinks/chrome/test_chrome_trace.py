"""The Chrome trace writer: what is in the file."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from helpers.batches import WORKER_THREAD, make_batch
from helpers.trace_files import base_ns, events_in, read_trace
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.events import EventFlag, RecordScope, make_event_id
from otel_recfn.sinks.chrome.writer import TraceWriter

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
    assert read_trace(tmp_path / "trace.json")["distributedInfo"] == {
        "backend": "",
        "rank": 3,
        "world_size": 8,
    }


def test_what_came_to_no_sink_is_missing_in_the_file_too(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor
) -> None:
    instrumentor.instrument(chrome_trace=path, tracer_provider=TracerProvider())
    with ExitStack() as opened:
        for _ in range(17_000):  # more than are followed
            opened.enter_context(record_function("nested"))
    instrumentor.uninstrument()
    assert read_trace(path)["lost"] == instrumentor.counters()["dropped.buffer_full"] > 0


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
        assert [name for name, _, _ in names[:3]] == [
            "process_name",
            "process_labels",
            "process_sort_index",
        ]
        assert ("thread_name", 1001, {"name": "MainThread"}) in names
        assert ("thread_name", 1002, {"name": "thread 1002"}) in names
        assert ("thread_sort_index", 1002, {"sort_index": 2}) in names
        assert {event["pid"] for event in events_in(path, "M")} == {os.getpid()}

    def test_a_name_is_written_once_and_again_when_it_becomes_known(
        self, writer: TraceWriter, path: Path
    ) -> None:
        for name in ("", "", "loader"):
            writer.write(make_batch([{"thread": WORKER_THREAD._replace(name=name)}]))
        found = [
            event["args"]["name"]
            for event in events_in(path, "M")
            if event["name"] == "thread_name"
        ]
        assert found == ["thread 1002", "loader"]

    def test_the_thread_that_only_ended_a_range_has_a_name_too(
        self, writer: TraceWriter, path: Path
    ) -> None:
        writer.write(make_batch([{"end_thread": WORKER_THREAD}]))
        assert 1002 in {
            event["tid"] for event in events_in(path, "M") if event["name"] == "thread_name"
        }


class TestArrows:
    def test_numbers_are_unique_across_batches(self, writer: TraceWriter, path: Path) -> None:
        for step in range(3):
            rows: list[dict[str, Any]] = [{"sequence_nr": 2 * step + n} for n in range(2)]
            rows += [
                {"sequence_nr": 2 * step + n, "forward_thread_id": 1, "scope": BACKWARD}
                for n in range(2)
            ]
            writer.write(make_batch(rows))
        assert [event["id"] for event in events_in(path, "s")] == [1, 2, 3, 4, 5, 6]

    def test_none_to_what_is_no_slice(self, writer: TraceWriter, path: Path) -> None:
        backward = {
            "sequence_nr": 4,
            "forward_thread_id": 1,
            "scope": BACKWARD,
            "flags": EventFlag.ASYNC,
        }
        writer.write(make_batch([{"sequence_nr": 4}, backward]))
        assert events_in(path, "f") == []
