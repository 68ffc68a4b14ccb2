"""Numbers in Chrome traces as torch.profiler has them: memory as counters, sequence numbers of
nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from helpers.perfetto_ui import ask_perfetto
from helpers.trace_files import base_ns, events_in
from otel_recfn import profile
from otel_recfn.model.events import RowKind
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = pytest.mark.one_python


def change(at: int, nbytes: int, device: str = "cpu", **more: Any) -> dict[str, Any]:
    times = {"start_ns": BASE_NS + at, "end_ns": BASE_NS + at}
    return {
        "name": "[memory]",
        "kind": RowKind.MEMORY,
        "nbytes": nbytes,
        "device": device,
        **times,
        **more,
    }


def counted(path: Path) -> list[tuple[str, int, int]]:
    counters = [
        (event["name"], event["ts"], event["args"]["bytes"]) for event in events_in(path, "C")
    ]
    return sorted(
        [(name, int(time * 1000) + base_ns() - BASE_NS, total) for name, time, total in counters]
    )


def test_each_device_has_a_counter_that_goes_on_over_batches(
    writer: TraceWriter, path: Path
) -> None:
    writer.write(
        make_batch([change(10, 100), change(30, -100), change(20, 50, thread=WORKER_THREAD)])
    )
    writer.write(make_batch([change(40, 7, "cuda:0"), change(50, -50, thread=MAIN_THREAD)]))
    assert counted(path) == [
        ("memory cpu", 10, 100),
        ("memory cpu", 20, 150),
        ("memory cpu", 30, 50),
        ("memory cpu", 50, 0),
        ("memory cuda:0", 40, 7),
    ]


def test_a_batch_that_is_not_written_counts_all_the_same(
    writer: TraceWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    writer.write(make_batch([change(10, 100)]))
    with monkeypatch.context() as patched:
        patched.setattr("otel_recfn.sinks.growing_file.GrowingFile.show", full)
        writer.write(make_batch([change(20, 1000)]))
    writer.write(make_batch([change(30, 1)]))
    assert [total for _, _, total in counted(path)] == [100, 1101]


def test_perfetto_has_a_counter_track(writer: TraceWriter, path: Path) -> None:
    now_ns = base_ns() + 10**9
    rows = [
        {**change(0, nbytes), "start_ns": now_ns + at, "end_ns": now_ns + at}
        for at, nbytes in ((0, 4096), (1000, -96))
    ]
    writer.write(make_batch(rows))
    joined = "counter join counter_track on counter.track_id = counter_track.id"
    [found] = ask_perfetto(
        path, f"select value from {joined} where name like 'memory%' order by ts"
    )
    assert found == [(4096.0,), (4000.0,)]


@pytest.mark.torch
def test_they_are_torch_profilers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def train() -> None:
        x = torch.ones(2, 2, requires_grad=True)
        (x * x).relu().sum().backward()

    def node_fields(path: Path) -> list[tuple[Any, ...]]:
        found = [
            event
            for event in events_in(path, "X")
            if event["name"].startswith("autograd::engine::evaluate_function")
        ]
        found.sort(key=lambda event: event["ts"])
        numbers = [event["args"].get("Sequence number") for event in found]
        lowest = min(number for number in numbers if number is not None)
        return [
            (
                event["name"],
                number if number is None else number - lowest,
                event["args"].get("Fwd thread id", 0) > 0,
            )
            for event, number in zip(found, numbers, strict=True)
        ]

    train()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        train()
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    with profile() as ours:
        train()
    ours.export_chrome_trace(tmp_path / "ours.json")
    assert node_fields(tmp_path / "ours.json") == node_fields(tmp_path / "theirs.json")
