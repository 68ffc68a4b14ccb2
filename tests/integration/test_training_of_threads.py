"""Which module calls are training, as a thread makes them, beside what whole training loops
show.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.pytorch import training
from otel_recfn.pytorch.training import MAX_CALLS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def sink(instrumentor: OtelRecordFunctionInstrumentor) -> InMemorySink:
    sink = InMemorySink()
    instrumentor.instrument(sinks=[sink])
    return sink


def evaluations(instrumentor: OtelRecordFunctionInstrumentor, sink: InMemorySink) -> list[bool]:
    """Whether each module call was no part of training."""
    assert instrumentor.flush(PATIENCE_S)
    calls = [event for event in sink.events() if event.source == EventSource.MODULE]
    return [bool(call.flags & EventFlag.EVALUATION) for call in calls]


def test_calls_are_no_training_until_there_is_an_optimizer(
    instrumentor: OtelRecordFunctionInstrumentor,
    sink: InMemorySink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, *arguments: Any) -> None:  # type: ignore[override]
            super().step(*arguments)

    # Other tests have made optimizers of PyTorch's own kinds, and it costs time to look for them.
    monkeypatch.setattr(training, "optimizers", training.Optimizers())
    monkeypatch.setattr(training, "_kinds_of", lambda _kind: [Own])
    monkeypatch.setattr(training, "COST_SHARE", 0)
    model = torch.nn.Linear(2, 2)
    model(torch.ones(2))
    Own(model.parameters(), lr=0.1)
    model(torch.ones(2))
    assert evaluations(instrumentor, sink) == [True, False]


def test_a_thread_in_which_no_optimizer_steps_any_more_does_not_train(
    instrumentor: OtelRecordFunctionInstrumentor, sink: InMemorySink
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(MAX_CALLS + 2):
        model(torch.ones(2))
    optimizer.step()
    model(torch.ones(2))
    assert evaluations(instrumentor, sink) == [*[False] * MAX_CALLS, True, True, False]


def test_any_number_of_micro_batches_is_one_step(
    instrumentor: OtelRecordFunctionInstrumentor, sink: InMemorySink
) -> None:
    model = torch.nn.Linear(2, 2)
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(MAX_CALLS + 2):
        loss(model(torch.ones(2)), torch.ones(2)).backward()
    optimizer.step()
    assert evaluations(instrumentor, sink) == [False] * (2 * (MAX_CALLS + 2))
    steps = [step for batch in sink.batches() for step in batch.steps]
    assert len(steps) == 1
    calls = [event for event in sink.events() if event.source == EventSource.MODULE]
    assert steps[0].start_ns <= calls[0].start_ns
    assert calls[-1].end_ns <= steps[0].end_ns


def test_where_an_optimizer_steps_in_another_thread_calls_are_no_micro_batches_for_ever(
    instrumentor: OtelRecordFunctionInstrumentor, sink: InMemorySink
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ThreadPoolExecutor(1) as optimizing:
        for number in range(MAX_CALLS + 2):
            model(torch.ones(2)).sum().backward()
            if number % 100 == 0:
                optimizing.submit(optimizer.step).result(PATIENCE_S)
    assert evaluations(instrumentor, sink) == [*[False] * MAX_CALLS, True, True]
    steps = [step for batch in sink.batches() for step in batch.steps]
    assert [step.number for step in steps] == list(range(11)), "each is a step of its thread's"
