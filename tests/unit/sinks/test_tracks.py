"""Events of what is no thread: a track of its own in a Chrome trace, and no thread's attributes on spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batches import MAIN_THREAD, STREAM, context, make_batch
from otel_recfn.batches.links import LinkFinder
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.model.scope import RecordScope
from otel_recfn.sinks.chrome.writer import TraceWriter
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.spans.sink import SpansSink

LAUNCH = make_event_id(MAIN_THREAD.number, 1)
KERNEL = make_event_id(STREAM.number, 1)


def launch_and_kernel(**kernel: Any) -> Batch:
    """An operator, and the kernel that it launched."""
    request = context(trace_id=0xABC, span_id=0xDEF)
    return make_batch(
        [
            {"event_id": KERNEL, "name": "gemm", "thread": STREAM, "parent": LAUNCH, "context": request, **kernel},
            {"event_id": LAUNCH, "name": "aten::mm", "thread": MAIN_THREAD, "context": request},
        ]
    )


def trace_of(batch: Batch, path: Path) -> list[dict[str, Any]]:
    writer = TraceWriter(path)
    writer.write(batch)
    writer.close()
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_a_stream_is_a_named_track_of_its_own_below_the_threads(tmp_path: Path) -> None:
    events = trace_of(launch_and_kernel(), tmp_path / "trace.json")
    tids = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert tids["aten::mm"] == MAIN_THREAD.native_id != tids["gemm"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {MAIN_THREAD.native_id: "MainThread", tids["gemm"]: "stream 7"}
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    assert order[tids["gemm"]] > order[MAIN_THREAD.native_id]


@pytest.mark.parametrize("number", [MAIN_THREAD.native_id, 7, 4_194_304])
def test_a_stream_is_never_on_a_thread_with_its_number(number: int, tmp_path: Path) -> None:
    thread = MAIN_THREAD._replace(native_id=number)
    batch = make_batch([{"thread": thread}, {"thread": STREAM._replace(number=number)}])
    events = trace_of(batch, tmp_path / "trace.json")
    assert len({event["tid"] for event in events if event["ph"] == "X"}) == 2


def test_a_stream_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    batch = make_batch([{"thread": STREAM._replace(name="")}])
    events = trace_of(batch, tmp_path / "trace.json")
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["stream 3"]


@pytest.mark.parametrize("flags", [EventFlag.NONE, EventFlag.ASYNC])
def test_an_event_of_a_stream_has_no_thread_id_in_the_trace(flags: EventFlag, tmp_path: Path) -> None:
    events = trace_of(launch_and_kernel(flags=flags), tmp_path / "trace.json")
    [kernel] = [event for event in events if event["name"] == "gemm" and "args" in event]
    assert not {"Thread id", "End thread id"} & set(kernel["args"])
    [launch] = [event for event in events if event["name"] == "aten::mm"]
    assert launch["args"]["Thread id"] == MAIN_THREAD.thread_id


def test_a_span_of_a_stream_has_no_attributes_of_a_thread() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    writer = SpansSink(provider, None)
    writer.write(launch_and_kernel())
    writer.close(1)
    kernel, launch = exporter.get_finished_spans()
    assert (kernel.name, launch.name) == ("gemm", "aten::mm")
    assert kernel.parent is not None
    assert kernel.parent.span_id == launch.context.span_id
    of_threads = {"thread.id", "thread.name", "recfn.thread_id"}
    assert not of_threads & set(kernel.attributes or {})
    assert of_threads <= set(launch.attributes or {})


def test_a_stream_is_nobodys_forward_thread() -> None:
    forward = {"thread": MAIN_THREAD, "sequence_nr": 5}
    other = {"thread": STREAM._replace(thread_id=MAIN_THREAD.thread_id), "sequence_nr": 5}
    backward = {"scope": RecordScope.BACKWARD_FUNCTION, "sequence_nr": 5, "forward_thread_id": MAIN_THREAD.thread_id}
    batch = make_batch([forward, other, backward])
    links = LinkFinder().match(batch, np.arange(len(batch.tracks), dtype=np.uint64))
    assert links.event_id.tolist() == [make_event_id(MAIN_THREAD.number, 1)]


def test_an_event_says_which_track_it_is_of() -> None:
    writer = InMemorySink()
    writer.write(launch_and_kernel())
    kernel, launch = writer.events()
    assert (kernel.thread, launch.thread) == (STREAM, MAIN_THREAD)
    assert (kernel.thread.is_thread, launch.thread.is_thread) == (False, True)
