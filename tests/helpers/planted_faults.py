"""Programs with one fault each, far larger than what else they do; and what a report has to say
of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from otel_recfn import record_function, step

Program = Callable[[], object]


class SlowDataset(Dataset[torch.Tensor]):
    """Its samples come from far away."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, _index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.ones(64)


def data_in_the_loop() -> None:
    trained(DataLoader(SlowDataset(), batch_size=2))


def data_from_one_worker() -> None:
    trained(DataLoader(SlowDataset(), batch_size=2, num_workers=1))


def trained(batches: Any) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()


class Waiting(nn.Module):
    """Waits for something that isn't computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        threading.Event().wait(0.05)
        return x + 1


def waiting_in_a_module() -> None:
    model = nn.Sequential(nn.Linear(64, 64), Waiting())
    for _ in range(6):
        model(torch.ones(4, 64))


def the_gil_is_taken() -> None:
    done = threading.Event()
    turns = [0]
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(16)])

    def spin() -> None:
        with record_function("prepares"):
            while not done.is_set():
                turns[0] += sum(range(100)) > 0

    others = [threading.Thread(target=spin) for _ in range(3)]
    for other in others:
        other.start()
    try:
        number = 0
        while number < 6 or turns[0] < 100_000:  # until the others have had the GIL for long
            with step("batch", number):
                model(torch.ones(4, 16))
            number += 1
    finally:
        done.set()
        for other in others:
            other.join()


def compiled_for_each_shape() -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(32, 32), backend="eager", dynamic=False)
    for size in range(2, 8):
        model(torch.ones(size, 32))


def compiled_for_each_number() -> None:
    torch._dynamo.reset()

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return (x * by).relu().sum()

    fast = torch.compile(scaled, backend="eager", dynamic=False)
    for number in range(6):
        fast(torch.ones(32), number + 0.5)


class Elementwise(nn.Module):
    """Computes number by number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for number in range(len(x)):
            total = total + x[number]
        return total


def a_loop_over_elements() -> None:
    Elementwise()(torch.ones(3000))


def an_optimizer_of_many_parameters() -> None:
    weights = [nn.Parameter(torch.ones(4)) for _ in range(400)]
    optimizer = torch.optim.Adam(weights, foreach=False)
    for weight in weights:
        weight.grad = torch.ones(4)
    for _ in range(4):
        optimizer.step()


class Counting(nn.Module):
    """Asks for each number."""

    def forward(self, x: torch.Tensor) -> int:
        return sum(1 for number in range(len(x)) if x[number].item() > 0)


def an_item_of_each_element() -> None:
    Counting()(torch.ones(3000))


class Masking(nn.Module):
    """Selects by a mask, over and over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            torch.nonzero(x)
        return x


def places_of_a_mask() -> None:
    Masking()(torch.ones(200, 200))


class Casting(nn.Module):
    """Computes in double what comes and goes as float."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (x.double() + 1).float()
        return x


def casts_around_each_operator() -> None:
    Casting()(torch.ones(1000, 1000))


def a_cache_that_grows_by_one() -> None:
    cache = torch.ones(1, 1 << 20)
    for _ in range(70):
        cache = torch.cat([cache[-6:], torch.ones(1, 1 << 20)])


PLANTED: list[tuple[str, str, Program]] = [
    ("data", "_SingleProcessDataLoaderIter", data_in_the_loop),
    ("data", "_MultiProcessingDataLoaderIter", data_from_one_worker),
    ("cpu", "Waiting", waiting_in_a_module),
    ("cpu", "prepares", the_gil_is_taken),
    ("compile", "torch.compile: ", compiled_for_each_shape),
    ("compile", "torch.compile: scaled", compiled_for_each_number),
    ("tiny", "aten::", a_loop_over_elements),
    ("tiny", "aten::", an_optimizer_of_many_parameters),
    ("sync", "aten::item", an_item_of_each_element),
    ("sync", "aten::nonzero", places_of_a_mask),
    ("copy", "aten::to", casts_around_each_operator),
    ("memory", "aten::cat", a_cache_that_grows_by_one),
]
"""The rule that finds it, and what is in the path of the range that it is about."""
