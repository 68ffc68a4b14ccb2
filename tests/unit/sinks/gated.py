"""An inner sink that can be made to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from batches import make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.protocol import Sink
from patience import PATIENCE_S

MakeSink = Callable[..., BackgroundSink]


class Gated(Sink):
    """An inner sink whose ``write`` waits for the gate, and that writes down what it is asked."""

    name = "gated"

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()
        self.calls: list[str] = []
        self.rows = 0
        self.closed = threading.Event()

    def write(self, batch: Batch) -> None:
        self.rows += len(batch)
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        self.calls.append(f"write {len(batch)}")

    def flush(self, timeout_s: float) -> bool:
        self.calls.append("flush")
        return timeout_s > 0

    def close(self, timeout_s: float) -> None:
        self.calls.append("close")
        self.closed.set()

    def counters(self) -> Mapping[str, int]:
        return {}

    def after_fork_in_child(self) -> Sink | None:
        return Gated()

    def note_gap(self) -> None:
        self.calls.append("gap")


def rows(count: int) -> Batch:
    return make_batch([{}] * count)


def lost(sink: BackgroundSink) -> dict[str, int]:
    """What it lost, by reason, without zeros."""
    return {name.removeprefix("dropped."): count for name, count in sink.counters().items() if count}
