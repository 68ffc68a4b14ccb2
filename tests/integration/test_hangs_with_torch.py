"""PyTorch's operators that hang, wherever they run, are told with what they lie in."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S, wait_until
from helpers.trace_files import events_in
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.batch import Batch, Event
from otel_recfn.sinks.in_memory import InMemorySink

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class OpenRangesSink(InMemorySink):
    """Says when a range of that name is told."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.wanted = name
        self.open_ranges = threading.Event()
        self.ranges = list[Event]()

    def write(self, batch: Batch) -> None:
        super().write(batch)
        if batch.long_open is None:
            return
        self.ranges = list(batch.long_open.events())
        if self.wanted in [event.name for event in self.ranges]:
            self.open_ranges.set()

    def path(self) -> list[str]:
        """What it is in, outermost first, and itself."""
        by_id = {event.event_id: event for event in self.ranges}
        [at] = [event for event in self.ranges if event.name == self.wanted]
        names = [at.name]
        while at.parent in by_id:
            at = by_id[at.parent]
            names.insert(0, at.name)
        return names


@pytest.fixture
def hang() -> Iterator[Callable[..., Any]]:
    """An operator that waits until it is told."""
    library = torch.library.Library("recfn_hangs", "DEF")
    library.define("hang(Tensor x) -> Tensor")
    waits: list[threading.Event] = []

    def implementation(x: Any) -> Any:
        assert waits[-1].wait(PATIENCE_S)
        return x.clone()

    library.impl("hang", implementation, "CPU")

    def until(event: threading.Event, x: Any) -> Any:
        waits.append(event)
        return torch.ops.recfn_hangs.hang(x)

    yield until
    library._destroy()


@pytest.fixture
def open_ranges() -> Iterator[OpenRangesSink]:
    sink = OpenRangesSink("recfn_hangs::hang")
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(sinks=[sink], open_range_s=0.05)
    yield sink
    instrumentor.uninstrument()


def test_an_operator_that_hangs_in_a_module(
    hang: Callable[..., Any], open_ranges: OpenRangesSink
) -> None:
    class Hangs(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return hang(open_ranges.open_ranges, x)

    model = torch.nn.Sequential(Hangs())
    with record_function("step"):
        model(torch.ones(2))
    assert open_ranges.path() == [
        "step",
        "nn.Module: Sequential_0",
        "nn.Module: Hangs_0",
        "recfn_hangs::hang",
    ]


def test_an_operator_that_hangs_in_a_backward_pass(
    hang: Callable[..., Any], open_ranges: OpenRangesSink
) -> None:
    class Hangs(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return hang(open_ranges.open_ranges, gradient)

    with record_function("step"):
        Hangs.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert open_ranges.path()[0] == "step"
    assert open_ranges.path()[-2:] == ["HangsBackward", "recfn_hangs::hang"]


def hangs_in(path: Path) -> list[dict[str, Any]]:
    """The events of the hang in a trace; none while it is being written."""
    try:
        return [each for each in events_in(path, "X") if each["name"] == "recfn_hangs::hang"]
    except json.JSONDecodeError:
        return []


def test_a_chrome_trace_has_it_long_before_it_is_a_span(
    hang: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    ends = threading.Event()
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(chrome_trace=path, open_range_s=86_400.0)
    thread = threading.Thread(target=hang, args=(ends, torch.ones(2)))
    try:
        thread.start()
        found = list[dict[str, Any]]()
        wait_until(lambda: found.extend(hangs_in(path)) or bool(found))
        assert found[0]["args"]["Partial"]
    finally:
        ends.set()
        thread.join(PATIENCE_S)
        instrumentor.uninstrument()
