"""The programs that run with all outputs at once: what each of them does is the same in every run,
but for its times.

A program is a generator: it records up to its ``yield``, and cleans up after recording has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from opentelemetry import trace
from opentelemetry.trace import Tracer
from torch import nn
from torch.utils.data import DataLoader, Dataset

from helpers.timeouts import PATIENCE_S, let_time_pass, wait_until
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function, step
from otel_recfn.observing import propagate

Program = Callable[[Tracer], "Iterator[None] | None"]
PROGRAMS: dict[str, Program] = {}
UNSAMPLED = "unsampled"
"""Part of the names of spans that the sampler leaves out, with all that is below them."""
SECRET = "the secret is"
SLOW = 17
"""The number of the call, or item, that is another one than those around it."""
FAILED = 1_100


def program(work: Program) -> Program:
    """Decorator: add a program under its function's name."""
    PROGRAMS[work.__name__] = work
    return work


class Network(nn.Module):  # type: ignore[misc]
    """Two layers with a name each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.activation = nn.ReLU()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.last(self.activation(self.first(x)))


class Training:
    """A network and what a step needs."""

    def __init__(self) -> None:
        self.model = Network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x: Any = None) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(3, 4) if x is None else x).sum().backward()
        self.optimizer.step()

    def validate(self, batches: int) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(batches):
                self.model(torch.ones(3, 4))
        self.model.train()


class Writer(nn.Module):  # type: ignore[misc]
    """A model that takes a prompt, and then a token at a time with what it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Any, memory: Any = None) -> Any:
        x = self.embedding(tokens)
        if memory is not None:
            x = x + memory
        x = self.block(x).relu()
        return self.head(x), x[:, -1:]

    def write(self, prompt: int, tokens: int) -> None:
        with torch.no_grad():
            logits, memory = self(torch.zeros((1, prompt), dtype=torch.int64))
            for _ in range(tokens):
                logits, memory = self(logits[:, -1].argmax(-1, keepdim=True), memory)


class Items(Dataset[Any]):
    """Four items, which workers make."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        with record_function("make item"):
            return torch.ones(4) * index


def work_for(milliseconds: int) -> None:
    """Where lengths are compared: asleep, so that on a busy machine all of them grow alike."""
    time.sleep(milliseconds / 1000)


@program
def training_with_workers(tracer: Tracer) -> None:
    training = Training()
    with tracer.start_as_current_span("epoch"):
        for x in DataLoader(Items(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
            training.step(x)


@program
def generation(tracer: Tracer) -> None:
    writer = Writer().eval()
    for _ in range(2):
        with tracer.start_as_current_span("POST /write"):
            writer.write(prompt=5, tokens=6)


@program
def threads(tracer: Tracer) -> None:
    """Threads that work for a range of the request at once, and one for itself."""
    at_once = threading.Barrier(3)

    def part(number: int) -> None:
        at_once.wait()
        for _ in range(3):
            with record_function("part"):
                torch.ones(2).add(number)
                let_time_pass(200_000)
        at_once.wait()

    def for_itself() -> None:
        with record_function("for itself"):
            torch.ones(2).mul(2)

    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            with tracer.start_as_current_span("request"), record_function("gather"):
                parts = [
                    pool.submit(contextvars.copy_context().run, part, number) for number in range(3)
                ]
                for each in parts:
                    each.result()
        pool.submit(for_itself).result()


@program
def work_that_goes_on(tracer: Tracer) -> None:
    """In a thread, after the range that it was handed over in."""
    begun = threading.Event()
    over = threading.Event()

    def work() -> None:
        with record_function("long part"):
            begun.set()
            over.wait()
            torch.ones(2).neg()

    with tracer.start_as_current_span("request"), ThreadPoolExecutor(1) as pool:
        with record_function("submit"):
            later = pool.submit(contextvars.copy_context().run, work)
            begun.wait()
        over.set()
        later.result()


@program
def tasks_that_interleave(tracer: Tracer) -> None:
    """Two tasks of a thread, of which one works while the other one waits, each in its own
    request.
    """

    async def task(number: int, mine: asyncio.Event, others: asyncio.Event) -> None:
        with tracer.start_as_current_span(f"request {number}"), record_function("outer"):
            for _ in range(2):
                await mine.wait()
                mine.clear()
                with record_function("inner"):
                    torch.ones(2).neg()
                    others.set()
                    await mine.wait()
                    mine.clear()
                    torch.ones(2).add(1)
                others.set()

    async def main() -> None:
        first = asyncio.Event()
        second = asyncio.Event()
        first.set()
        await asyncio.gather(task(1, first, second), task(2, second, first))

    asyncio.run(main())


@program
def async_blocks(tracer: Tracer) -> None:
    """Asynchronous blocks that nest, and decorated coroutines that call each other."""

    @record_function("callee")
    async def callee() -> None:
        await asyncio.sleep(0)
        torch.ones(2).neg()

    @record_function("caller")
    async def caller() -> None:
        await callee()

    async def main() -> None:
        with tracer.start_as_current_span("request"):
            async with record_function("outer"), record_function("inner"):
                await asyncio.sleep(0)
                torch.ones(2).add(1)
            await asyncio.gather(*[caller() for _ in range(8)])

    asyncio.run(main())


class Fails(torch.autograd.Function):  # type: ignore[misc]
    """Its backward node raises."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        raise ValueError("no gradient")


@program
def errors(tracer: Tracer) -> None:
    """What is left by an exception, by control flow, and by an operator or a backward node that
    raises.
    """
    with tracer.start_as_current_span("request"):
        with contextlib.suppress(KeyError), record_function("outer"), record_function("inner"):
            torch.ones(2).add(1)
            raise KeyError("missing")
        with contextlib.suppress(StopIteration), record_function("no more"):
            raise StopIteration
        with contextlib.suppress(SystemExit), record_function("exit"):
            raise SystemExit(3)
        with contextlib.suppress(RuntimeError), record_function("of an operator"):
            torch.ones(2, 3).mm(torch.ones(2, 3))
        with contextlib.suppress(RuntimeError):
            Network()(torch.ones(3))
        with contextlib.suppress(ValueError):
            Fails.apply(torch.ones(2, requires_grad=True)).sum().backward()


@cache
def scripted() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A network in TorchScript, and a function that goes on in a thread of PyTorch's and doesn't
    wait for that.

    One that waits may move to another thread meanwhile, which depends on how far the other one has
    come.
    """

    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    def fork(x: torch.Tensor) -> torch.jit.Future[torch.Tensor]:
        return torch.jit.fork(branch, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()), torch.jit.script(
            fork
        )


@program
def fork_and_script(tracer: Tracer) -> None:
    """TorchScript, and a thread that takes the range along."""
    network, fork = scripted()
    forks = 3
    with (
        tracer.start_as_current_span("request"),
        torch.no_grad(),
        record_function("outer"),
        profile() as seen,
    ):
        for _ in range(forks):
            network(torch.ones(2, 4))
            fork(torch.ones(2, 3)).wait()  # not `torch.jit.wait`, which holds the GIL meanwhile
        thread = threading.Thread(target=propagate(torch.relu), args=(torch.ones(2),))
        thread.start()
        thread.join()
        # a range in a thread of PyTorch's ends after its result is there
        wait_until(
            lambda: [event.name for event in seen.events()].count("<forked function>") == forks
        )


@program
def steps_by_hand(tracer: Tracer) -> None:
    """Steps with a name, with a number, without both, and in a span."""
    training = Training()
    for _ in range(2):
        with step("train"):
            training.step()
    with tracer.start_as_current_span("epoch"):
        for number in range(3, 5):
            with step("train", number):
                training.step()
    with step():
        training.validate(2)


@program
def names_as_steps_have_them(tracer: Tracer) -> None:
    """Blocks that end in a number, as a step's name in a file does, and blocks and steps of the
    same names.
    """
    writer = Writer().eval()
    for number in range(2):
        with record_function(f"epoch#{number}"), record_function(f"ProfilerStep, {number}"):
            with step("plain"), record_function("torch.compile"):
                torch.ones(2).add(1)
            with record_function("plain"), record_function("step"), record_function("decode#2"):
                torch.ones(2).mul(2)
            with step("of#7"), step(), record_function("decode"):
                torch.ones(2).neg()
            writer.write(prompt=5, tokens=3)


@program
def steps_of_a_schedule(tracer: Tracer) -> None:
    """Those of a profiler, which are ranges for all."""
    training = Training()
    schedule = torch.profiler.schedule(wait=0, warmup=0, active=3)
    with profile(schedule=schedule) as seen:
        for _ in range(3):
            training.step()
            seen.step()


@program
def asynchronous_edges(tracer: Tracer) -> None:
    """What begins first and ends last is asynchronous: steps, and blocks around them."""

    async def serve(name: str) -> None:
        async with step(name), record_function("block"):
            await asyncio.sleep(0)
            with record_function("work"):
                let_time_pass(1_000_000)
                torch.ones(2).add(1)
            await asyncio.sleep(0)

    async def main() -> None:
        async with record_function("serve"):
            await asyncio.gather(serve("first"), serve("second"))

    asyncio.run(main())


@program
def steps_by_themselves(tracer: Tracer) -> None:
    """A loop that marks no steps, outside of spans."""
    training = Training()
    for _ in range(4):
        training.step()


@program
def validation(tracer: Tracer) -> None:
    """The same with validation between the steps."""
    training = Training()
    for _ in range(2):
        training.step()
        training.step()
        training.validate(3)


@program
def sampling(tracer: Tracer) -> None:
    """Some spans are sampled, others aren't."""
    training = Training()
    for name in ("GET /", f"GET /{UNSAMPLED}") * 3:
        with tracer.start_as_current_span(name):
            training.validate(1)
            with step("score"):
                torch.ones(2).add(1)


@program
def open_at_the_end(tracer: Tracer) -> Iterator[None]:
    """Ranges and a span that end after the recording."""
    span = tracer.start_span("request")
    with trace.use_span(span), contextlib.ExitStack() as ranges:
        torch.ones(2).add(1)
        ranges.enter_context(record_function("open"))
        torch.ones(2).mul(2)
        yield
    span.end()


@program
def spans_of_the_program(tracer: Tracer) -> None:
    """Spans in each other, with time before the first and after the last operator, and without
    operators.
    """
    with tracer.start_as_current_span("request"):
        let_time_pass(2_000_000)
        with tracer.start_as_current_span("predict"), tracer.start_as_current_span("model"):
            torch.ones(2).add(1)
            let_time_pass(2_000_000)
        with tracer.start_as_current_span("render"):
            let_time_pass(1_000_000)
        torch.ones(2).mul(2)
        let_time_pass(2_000_000)


@program
def spans_inside_ranges(tracer: Tracer) -> None:
    """A span of the program's, and a step, inside ranges, in a request and outside of spans."""

    def work() -> None:
        with record_function("outer"):
            let_time_pass(1_000_000)
            for _ in range(30):  # more than an ordinary request has spans for
                torch.ones(2).mul(2)
            with tracer.start_as_current_span("within"), record_function("inner"):
                let_time_pass(4_000_000)
                torch.ones(2).neg()
            with step("train"), step("part"), record_function("work"):
                let_time_pass(4_000_000)

    with tracer.start_as_current_span("request"):
        work()
    work()


@program
def repeated_calls(tracer: Tracer) -> None:
    """Requests of which each does the same things many times, more than some budgets have spans
    for, and one of them slowly.
    """
    for request in range(2):
        with tracer.start_as_current_span("request"):
            for number in range(30):
                with record_function("load"):
                    work_for(1)
                with record_function("compute"):
                    with record_function("prepare"):
                        work_for(1)
                    torch.ones(2).add(number)
                    if request and number == SLOW:
                        work_for(20)
                with record_function("store"):
                    work_for(1)


# --- programs for one law each


def a_single_call_in_repeated_ones(tracer: Tracer) -> None:
    """Something that only one of many like calls does."""
    for _ in range(10):
        with tracer.start_as_current_span("request"):
            for number in range(20):
                with (
                    record_function("item"),
                    record_function("rare") if number == SLOW else contextlib.nullcontext(),
                ):
                    work_for(1)


def operators_that_call_one(tracer: Tracer) -> None:
    """``aten::linear``, which leaves nearly all to ``aten::addmm``."""
    x = torch.ones(512, 512)
    bias = torch.ones(512)
    with tracer.start_as_current_span("request"), torch.no_grad():
        for _ in range(3):
            nn.functional.linear(x, x, bias)


def spans_called_as_ranges(tracer: Tracer) -> None:
    with tracer.start_as_current_span("rec"):
        for _ in range(3):
            with record_function("rec"):
                torch.ones(2).add(1)


def steps_that_interleave(tracer: Tracer) -> None:
    """Asynchronous steps of one thread, each of which works in several stretches."""

    async def serve() -> None:
        async with step("serve"):
            for _ in range(3):
                with record_function("work"):
                    torch.ones(2).add(1)
                # What ran so far is written while the step is open.
                assert OtelRecordFunctionInstrumentor().flush(PATIENCE_S)
                await asyncio.sleep(0)  # the next task's turn

    async def main() -> None:
        await asyncio.gather(*[serve() for _ in range(3)])

    asyncio.run(main())


def steps_without_names(tracer: Tracer) -> None:
    for _ in range(3):
        with step(), record_function("work"):
            torch.ones(2).add(1)


def steps_after_a_pause(tracer: Tracer) -> None:
    """Training in blocks, after other work and a pause."""
    training = Training()
    let_time_pass(200_000_000)
    for _ in range(2):
        with record_function("iteration"):
            training.step()


def steps_around_a_span(tracer: Tracer) -> None:
    training = Training()
    training.step()
    with tracer.start_as_current_span("epoch"):
        training.step()
        training.step()
    training.step()


def steps_that_fail(tracer: Tracer) -> None:
    with contextlib.suppress(ValueError), step("raises"):
        raise ValueError(len("the secret is 123"))  # a literal, as source code has it
    with contextlib.suppress(SystemExit), step("exits"):
        raise SystemExit(3)


def generation_in_a_step(tracer: Tracer) -> None:
    writer = Writer().eval()
    with step("generate"):
        writer.write(prompt=5, tokens=6)


def nodes_that_wait(tracer: Tracer) -> None:
    """Autograd runs hooks of a node in the range around it, and not in the node, which is one of
    the shortest ranges.

    They are some six thousand ranges, so that most are compared before the span has ended.
    """
    x = torch.ones(4, requires_grad=True)
    with tracer.start_as_current_span("step"):
        for number in range(300):
            activated = x.relu()
            if number in (10, 130, 250):
                activated.grad_fn.register_hook(lambda *gradients: let_time_pass(20_000_000))
            activated.sum().backward()


def spans_in_nodes(tracer: Tracer) -> None:
    """Spans of the program's in a backward node, and beside another one in the range around
    that.
    """

    class Slow(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            with tracer.start_as_current_span("in a node"):
                let_time_pass(2_000_000)
            return gradient * 2

    def hook(*gradients: Any) -> None:
        with tracer.start_as_current_span("in a hook"):
            let_time_pass(2_000_000)

    x = torch.ones(4, requires_grad=True)
    with tracer.start_as_current_span("step"):
        activated = Slow.apply(x).relu()
        activated.grad_fn.register_hook(hook)
        activated.sum().backward()


def many_failures(tracer: Tracer) -> None:
    """More than there are spans for."""
    with tracer.start_as_current_span("request"):
        for _ in range(FAILED):
            with contextlib.suppress(ValueError), record_function("try"):
                raise ValueError("no")


def operators_that_call_their_own_name() -> None:
    x = torch.ones(3, 5, requires_grad=True)
    for _ in range(3):
        x.sum(0).mean().backward()
