"""PyTorch's operators that hang, wherever they run, are told with what they lie in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.model.batch import Batch, Event
from otel_recfn.sinks.in_memory import InMemorySink

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class Told(InMemorySink):
    """Says when a range of that name is told."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.wanted, self.told, self.ranges = name, threading.Event(), list[Event]()

    def write(self, batch: Batch) -> None:
        super().write(batch)
        if batch.long_open is None:
            return
        self.ranges = list(batch.long_open.events())
        if self.wanted in [event.name for event in self.ranges]:
            self.told.set()

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
def told() -> Iterator[Told]:
    sink, instrumentor = Told("recfn_hangs::hang"), OtelRecordFunctionInstrumentor()
    instrumentor.instrument(sinks=[sink], open_range_s=0.05)
    yield sink
    instrumentor.uninstrument()


def test_an_operator_that_hangs_in_a_module(hang: Callable[..., Any], told: Told) -> None:
    class Hangs(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return hang(told.told, x)

    model = torch.nn.Sequential(Hangs())
    with record_function("step"):
        model(torch.ones(2))
    assert told.path() == [
        "step",
        "nn.Module: Sequential_0",
        "nn.Module: Hangs_0",
        "recfn_hangs::hang",
    ]


def test_an_operator_that_hangs_in_a_backward_pass(hang: Callable[..., Any], told: Told) -> None:
    class Hangs(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return hang(told.told, gradient)

    with record_function("step"):
        Hangs.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert told.path()[0] == "step"
    assert told.path()[-2:] == ["HangsBackward", "recfn_hangs::hang"]
