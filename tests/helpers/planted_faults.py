"""Programs with one fault each, far larger than what else they do; and what a report has to say
of it.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
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


class Cell(nn.Module):
    """A step of a recurrent network, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Parameter(torch.ones(8, 8))
        self.onward = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.inward + state @ self.onward)


class Reader(nn.Module):
    """Reads a sequence, in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(1, 8)
        for x in sequence:
            state = self.cell(x, state)
        return state


def a_recurrent_network_by_hand() -> None:
    with step("train", 0):
        Reader()(torch.ones(2000, 1, 8)).sum().backward()


class Block(nn.Module):
    """Two layers with a nonlinear function between."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 256)
        self.outer = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.nn.functional.gelu(self.inner(x)))


def checkpoints_in_checkpoints() -> None:
    inner = [Block() for _ in range(2)]

    def both(x: torch.Tensor) -> torch.Tensor:
        for block in inner:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    for number in range(4):
        with step("train", number):
            x = torch.ones(256, 256, requires_grad=True)
            checkpoint(both, x, use_reentrant=False).sum().backward()


def function_checkpoints() -> None:
    """They call no modules, and have no nodes of their own."""
    weights = [torch.ones(256, 256, requires_grad=True) for _ in range(3)]

    def encode(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x

    for number in range(4):
        with step("train", number):
            with record_function("encoder"):
                x = checkpoint(encode, torch.ones(256, 256), use_reentrant=False)
            x.sum().backward()


class Norm(nn.Module):
    """Has a scale from NumPy, in which nobody asked for a dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.from_numpy(np.ones(512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).softmax(1).float()


def numpy_scale() -> None:
    model = nn.Sequential(nn.Linear(512, 8), nn.Linear(8, 512), Norm())
    with torch.no_grad():
        for _ in range(4):
            model(torch.ones(2048, 512))


class Layer(nn.Module):
    """A layer that may repeat itself."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(128, 128))
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x @ self.weight
        return x


class Stack(nn.Module):
    """Layers, of which one does what the others do forty times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(40 if number == 5 else 1) for number in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def one_slow_layer() -> None:
    model = Stack()
    with torch.no_grad():
        for _ in range(8):
            model(torch.ones(64, 128))


class Pictures(Dataset[torch.Tensor]):
    """Its first picture has to be fetched from far away, or another one."""

    def __init__(self, far: int, seconds: float) -> None:
        self.far = far
        self.seconds = seconds

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.far:
            time.sleep(self.seconds)
        return torch.ones(64)


def a_slow_first_item() -> None:
    trained(DataLoader(Pictures(0, 0.5), batch_size=2))


def a_slow_item_of_a_worker() -> None:
    trained(DataLoader(Pictures(9, 2.0), batch_size=2, num_workers=1))


def outputs_that_are_kept() -> None:
    model = nn.Linear(64, 1024)
    kept = []
    with torch.no_grad():
        for number in range(8):
            with step("predict", number):
                kept.append(model(torch.ones(256, 64)))


def losses_with_their_graphs() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    total = torch.zeros(())
    batch = torch.ones(512, 256)
    for _ in range(8):
        total = total + model(batch).square().mean()
    assert total.grad_fn is not None


def archive(body: bytes) -> bytes:
    return gzip.compress(body)


def archives_between_steps() -> None:
    model = nn.Linear(64, 64)
    body = os.urandom(1 << 21)
    for number in range(6):
        with step("train", number):
            model(torch.ones(4, 64))
        archive(body)


def a_large_body() -> None:
    model = nn.Linear(64, 64)
    rows = torch.ones(4000, 64)
    for _ in range(6):
        with step("request"):
            json.dumps(model(rows).tolist(), indent=1)


def a_rank_that_never_comes() -> None:
    begun = threading.Event()

    def wait() -> None:
        with record_function("all_reduce of rank 1"):
            begun.set()
            threading.Event().wait(4)

    threading.Thread(target=wait, daemon=True).start()
    begun.wait()
    nn.Linear(64, 64)(torch.ones(4, 64))
    time.sleep(1.2)


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
    ("tiny", "Reader", a_recurrent_network_by_hand),
    ("recompute", "Block", checkpoints_in_checkpoints),
    ("recompute", "`encoder`", function_checkpoints),
    ("double", "Norm", numpy_scale),
    ("sibling", "`layers.5`", one_slow_layer),
    ("batch", "Pictures.__getitem__", a_slow_first_item),
    ("batch", "_MultiProcessingDataLoaderIter", a_slow_item_of_a_worker),
    ("growth", "aten::linear", outputs_that_are_kept),
    ("growth", "aten::linear", losses_with_their_graphs),
    ("outside", "archive: gzip.compress", archives_between_steps),
    ("outside", "a_large_body: json.dumps", a_large_body),
    ("hang", "all_reduce of rank 1", a_rank_that_never_comes),
]
"""The rule that finds it, and what the finding names: a function, a module, an operator."""
