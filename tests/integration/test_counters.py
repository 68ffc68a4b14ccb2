"""Counters balance, also where a buffer is too small."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from nesting import check_nesting

from otel_recfn import InMemorySink
from otel_recfn.model.batch import Batch
from otel_recfn.model.counters import FATES, losses
from otel_recfn.model.events import EventKind
from patience import PATIENCE_S

torch = pytest.importorskip("torch")

from torch_programs import Training  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("needs_observer")]


def test_counters_balance(instrument: Callable[..., Any]) -> None:
    ours = instrument()
    Training().step()
    events = ours.finish()
    counters = ours.counters()
    assert counters["recorded"] == sum(event.kind == EventKind.RANGE for event in events)
    assert counters["recorded"] + counters["added"] == sum(counters[fate] for fate in FATES)
    assert losses(counters) == {}
    assert counters["waiting"] == 0


def test_a_buffer_that_is_too_small_is_counted(instrument: Callable[..., Any]) -> None:
    """The buffer belongs to a new thread: earlier ones keep theirs."""
    drained, work_is_done = threading.Event(), threading.Event()

    class Waits(InMemorySink):
        """Holds up the drain, so that there is none in the middle of the work."""

        name = "waits"

        def write(self, batch: Batch) -> None:
            drained.set()
            assert work_is_done.wait(PATIENCE_S)

    ours = instrument(buffer_bytes=4096, sinks=[Waits()])
    torch.relu(torch.ones(3))
    assert drained.wait(PATIENCE_S)
    first = ours.sink.events()[0]

    def work() -> None:
        with torch.profiler.record_function("outer"):
            for _ in range(100):
                torch.relu(torch.ones(3))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work_is_done.set()
    events = [event for event in ours.finish() if event.thread.number != first.thread.number]
    after = ours.counters()
    dropped = after["dropped.buffer_full"]
    assert dropped > 0
    assert after["recorded"] + after["added"] == sum(after[fate] for fate in FATES)
    assert len(events) + dropped == 1 + 100 * 5
    check_nesting(events)
