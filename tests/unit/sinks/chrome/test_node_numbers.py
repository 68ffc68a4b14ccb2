"""Sequence numbers on ``evaluate_function`` ranges, as torch.profiler's traces have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batches import make_batch
from otel_recfn import profile
from otel_recfn.model.events import RecordScope, make_event_id
from otel_recfn.sinks.chrome.writer import TraceWriter
from trace_files import events_in

pytestmark = pytest.mark.one_python

EVALUATE = "autograd::engine::evaluate_function: MulBackward0"
ROW = dict[str, Any]


def node(number: int, sequence_nr: int) -> tuple[ROW, ROW]:
    """The node, and the range around it."""
    around = make_event_id(1, number)
    backward = {"scope": RecordScope.BACKWARD_FUNCTION, "sequence_nr": sequence_nr, "forward_thread_id": 3, "parent": around}
    return {"name": "MulBackward0", "event_id": around + 1, **backward}, {"name": EVALUATE, "event_id": around}


def numbers_in(path: Path) -> list[tuple[Any, Any]]:
    ranges = [event["args"] for event in events_in(path, "X") if event["name"] == EVALUATE]
    return [(args.get("Sequence number"), args.get("Fwd thread id")) for args in ranges]


@pytest.mark.parametrize("at_once", [1, 4])
def test_they_are_those_of_the_node_inside_also_of_an_earlier_batch(writer: TraceWriter, path: Path, at_once: int) -> None:
    rows = [*node(1, 7), *node(10, 8)]
    for first in range(0, len(rows), at_once):
        writer.write(make_batch(rows[first : first + at_once]))
    assert numbers_in(path) == [(7, 3), (8, 3)]


def test_other_ranges_around_a_node_have_none(writer: TraceWriter, path: Path) -> None:
    inner, outer = node(1, 7)
    writer.write(make_batch([inner, {**outer, "name": "mine"}]))
    assert [event["args"].get("Sequence number") for event in events_in(path, "X") if event["name"] == "mine"] == [None]


@pytest.mark.torch
def test_they_are_torch_profilers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def train() -> None:
        x = torch.ones(2, 2, requires_grad=True)
        (x * x).relu().sum().backward()

    def told(path: Path) -> list[tuple[Any, ...]]:
        found = [event for event in events_in(path, "X") if event["name"].startswith("autograd::engine::evaluate_function")]
        found.sort(key=lambda event: event["ts"])
        numbers = [event["args"].get("Sequence number") for event in found]
        lowest = min(number for number in numbers if number is not None)
        return [
            (event["name"], number if number is None else number - lowest, event["args"].get("Fwd thread id", 0) > 0)
            for event, number in zip(found, numbers, strict=True)
        ]

    train()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        train()
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    with profile() as ours:
        train()
    ours.export_chrome_trace(tmp_path / "ours.json")
    assert told(tmp_path / "ours.json") == told(tmp_path / "theirs.json")
