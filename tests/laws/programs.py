"""Twenty-one programs whose spans are known, each deterministic but for its times."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer
from torch import nn

from otel_recfn import record_function, step
from otel_recfn.observing import propagate


class Program(NamedTuple):
    """What is recorded, and what it works with."""

    prepare: Callable[[], Any]
    """Makes what the program works with, which isn't recorded."""
    run: Callable[[Tracer, Any], object]


PROGRAMS: dict[str, Program] = {}


def program(
    prepare: Callable[[], Any],
) -> Callable[[Callable[[Tracer, Any], object]], Callable[[Tracer, Any], object]]:
    """Decorator: add a program under its function's name."""

    def add(run: Callable[[Tracer, Any], object]) -> Callable[[Tracer, Any], object]:
        PROGRAMS[run.__name__] = Program(prepare, run)
        return run

    return add


def ones() -> Any:
    return torch.ones(2)


class Perceptron(nn.Module):  # type: ignore[misc]
    """Two layers, whose module calls have paths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 3)])
        self.activation = nn.ReLU()
        self.x = torch.ones(1, 3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


class Training:
    """A model, its loss and its optimizer."""

    def __init__(self) -> None:
        self.model = Perceptron()
        self.loss = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.ones(2, 3)

    def forward_and_backward(self) -> None:
        self.loss(self.model(self.x), self.x).backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.forward_and_backward()
        self.optimizer.step()

    def validate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss(self.model(self.x), self.x)
        self.model.train()


@program(lambda: Perceptron().eval())
def a_request(tracer: Tracer, model: Any) -> None:
    """Inference below a span of the program's, which lies in another one."""
    with (
        tracer.start_as_current_span("POST /predict"),
        tracer.start_as_current_span("predict"),
        torch.inference_mode(),
    ):
        model(torch.ones(1, 3))


@program(Training)
def a_training_step_in_a_span(tracer: Tracer, training: Training) -> None:
    with tracer.start_as_current_span("epoch"):
        training.step()


@program(Training)
def a_training_loop(tracer: Tracer, training: Training) -> None:
    """Outside of all spans: traces of our own."""
    for _ in range(3):
        training.step()


@program(Training)
def accumulated_gradients(tracer: Tracer, training: Training) -> None:
    for _ in range(2):
        training.optimizer.zero_grad()
        training.forward_and_backward()
        training.forward_and_backward()
        training.optimizer.step()


@program(Training)
def validation_between_epochs(tracer: Tracer, training: Training) -> None:
    for _ in range(2):
        training.step()
        training.validate()


@program(Training)
def a_closure(tracer: Tracer, training: Training) -> None:
    """All of a step but the optimizer's own lies in the optimizer's step."""

    def closure() -> Any:
        training.optimizer.zero_grad()
        loss = training.loss(training.model(training.x), training.x)
        loss.backward()
        return loss

    for _ in range(2):
        training.optimizer.step(closure)


@program(Training)
def steps_by_hand(tracer: Tracer, training: Training) -> None:
    for number in range(2):
        with step("train", number):
            training.step()
    with step(number=2):
        training.validate()


@program(Training)
def steps_in_a_span(tracer: Tracer, training: Training) -> None:
    with tracer.start_as_current_span("epoch"):
        for number in range(2):
            with step("train", number):
                training.step()


@program(ones)
def ranges_with_arguments(tracer: Tracer, x: Any) -> None:
    with (
        tracer.start_as_current_span("request"),
        record_function("load", "3 files"),
        record_function("parse"),
    ):
        x.add(1)


@program(ones)
def a_range_that_raises(tracer: Tracer, x: Any) -> None:
    def fail() -> None:
        with record_function("outer"), record_function("inner"):
            x.add(1)
            raise KeyError("missing")

    with tracer.start_as_current_span("request"), contextlib.suppress(KeyError):
        fail()


@program(ones)
def a_span_inside_a_range(tracer: Tracer, x: Any) -> None:
    with tracer.start_as_current_span("request"), record_function("outer"):
        with tracer.start_as_current_span("within"), record_function("inner"):
            x.add(1)
        x.mul(2)


@program(ones)
def threads_of_a_pool(tracer: Tracer, x: Any) -> None:
    """One thread after the other, each in the context of the request."""

    def work(number: int) -> None:
        with record_function(f"part {number}"):
            x.add(number)

    with tracer.start_as_current_span("request"), ThreadPoolExecutor(1, "pool") as pool:
        for number in range(2):
            pool.submit(contextvars.copy_context().run, work, number).result()


@program(ones)
def a_thread_that_takes_the_range_along(tracer: Tracer, x: Any) -> None:
    def work() -> None:
        x.add(1)

    with tracer.start_as_current_span("request"), record_function("outer"):
        thread = threading.Thread(target=propagate(work), name="worker")
        thread.start()
        thread.join()


@program(ones)
def tasks_that_interleave(tracer: Tracer, x: Any) -> None:
    async def task(name: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        with tracer.start_as_current_span(name), record_function(f"work of {name}"):
            for _ in range(2):
                await mine.wait()
                mine.clear()
                x.add(1)
                other.set()

    async def main() -> None:
        first = asyncio.Event()
        second = asyncio.Event()
        first.set()
        await asyncio.gather(task("first", first, second), task("second", second, first))

    asyncio.run(main())


@program(ones)
def generators(tracer: Tracer, x: Any) -> None:
    """What a consumer runs between the items of a generator isn't the generator's."""

    def items() -> Iterator[Any]:
        for number in range(2):
            with record_function(f"make {number}"):
                made = x.add(number)
            yield made

    async def asynchronous() -> AsyncIterator[Any]:
        for made in items():
            yield made

    async def consume() -> None:
        async for made in asynchronous():
            with record_function("consume"):
                made.mul(2)

    with tracer.start_as_current_span("request"):
        for made in items():
            made.mul(2)
        asyncio.run(consume())


def scripted_model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
        model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval())
    # The first call is another one, in a process that has run no such model.
    model(torch.ones(1, 3))
    return model


@program(scripted_model)
def scripted(tracer: Tracer, model: Any) -> None:
    with tracer.start_as_current_span("request"), torch.no_grad():
        for _ in range(3):
            model(torch.ones(1, 3))


@program(lambda: nn.Linear(3, 3))
def checkpointed(tracer: Tracer, layer: Any) -> None:
    """Operators of a forward run again below the backward."""
    x = torch.ones(1, 3, requires_grad=True)
    with tracer.start_as_current_span("step"):
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()


@program(ones)
def below_spans_that_are_not_sampled(tracer: Tracer, x: Any) -> None:
    """Nothing is sent below a remote span that wasn't sampled, and all below one that was."""
    for trace_id, flags in ((1, TraceFlags.DEFAULT), (2, TraceFlags.SAMPLED)):
        remote = NonRecordingSpan(
            SpanContext(trace_id, 3, is_remote=True, trace_flags=TraceFlags(flags))
        )
        token = otel_context.attach(trace.set_span_in_context(remote))
        with tracer.start_as_current_span("request"):
            x.add(1)
        otel_context.detach(token)


@program(ones)
def many_small_operators(tracer: Tracer, x: Any) -> None:
    """More than any budget has spans for."""
    with tracer.start_as_current_span("request"):
        for _ in range(40):
            with record_function("block"):
                for _ in range(20):
                    x = x.add(1).mul(1)


@program(ones)
def a_span_that_ends_before_its_range(tracer: Tracer, x: Any) -> None:
    span = tracer.start_span("request")
    with trace.use_span(span), record_function("outer"):
        x.add(1)
        span.end()
        x.mul(2)


@program(lambda: Perceptron().eval())
def module_calls_alone(tracer: Tracer, model: Any) -> None:
    with torch.no_grad():
        for _ in range(2):
            model(model.x)
