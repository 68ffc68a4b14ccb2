"""Programs as they should be: a report has nothing serious to say of them."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from helpers.timeouts import PATIENCE_S
from otel_recfn import record_function, step

WIDTH = 512


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def trained(model: nn.Module, batches: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(batches):
        with step("train", number):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def a_training_loop() -> None:
    trained(perceptron(), [torch.ones(256, WIDTH)] * 6)


def a_generation() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    head = nn.Linear(256, 1000)
    known = nn.Embedding(1000, 256)
    tokens = torch.zeros(8, 20, dtype=torch.long)
    with torch.inference_mode():
        for _ in range(10):
            chosen = head(layer(known(tokens)))[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, chosen], 1)


def a_convolution_net() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3),
        nn.Flatten(),
    )
    trained(model, [torch.ones(8, 3, 64, 64)] * 4)


def an_evaluation() -> None:
    model = perceptron().eval()
    right = torch.zeros((), dtype=torch.long)
    with torch.no_grad():
        for _ in range(8):
            right += (model(torch.ones(256, WIDTH)).argmax(1) == 0).sum()
    assert right.item() >= 0


def ranks_of_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1
        )
        try:
            trained(DistributedDataParallel(perceptron()), [torch.ones(256, WIDTH)] * 4)
        finally:
            dist.destroy_process_group()
    # The model and its reducer refer to each other, and have threads that only this process has. A
    # worker that a later program forked was seen to abort as it collected garbage. So none is left.
    gc.collect()


class Counted(Dataset[torch.Tensor]):
    """Samples whose maker says when it has made the last one."""

    def __init__(self) -> None:
        self.all_made = multiprocessing.Event()

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == len(self) - 1:
            self.all_made.set()
        return torch.ones(WIDTH)


def a_loader_with_workers() -> None:
    """Its worker is ahead of the loop, also where other programs have the cores: the loop begins
    when all batches are made.
    """
    samples = Counted()
    batches = iter(DataLoader(samples, batch_size=256, num_workers=1, prefetch_factor=4))
    assert samples.all_made.wait(PATIENCE_S)
    trained(nn.Sequential(*[perceptron() for _ in range(8)]), batches)


def under_autocast() -> None:
    model = perceptron()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained(model, [torch.ones(1024, WIDTH)] * 3)


def a_servers_requests() -> None:
    model = perceptron().eval()
    for _ in range(5):
        with record_function("POST /predict"), torch.inference_mode():
            model(torch.ones(128, WIDTH)).softmax(-1).argmax(-1).tolist()


torch._dynamo.config.cache_size_limit = 64  # which other programs here use up
compiled = torch.compile(perceptron(), backend="eager")


def compiled_and_warm() -> None:
    for _ in range(6):
        compiled(torch.ones(256, WIDTH)).sum().backward()


def large_products_in_two_threads() -> None:
    """Each has the cores that it gets."""
    torch.ones(64, 64) @ torch.ones(64, 64)

    def multiply() -> None:
        x = torch.ones(1024, 1024)
        for _ in range(8):
            x @ x

    threads = [threading.Thread(target=multiply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def a_recurrent_network() -> None:
    model = nn.LSTM(64, 128)
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(50, 32, 64))


def a_stack_of_equal_layers() -> None:
    layers = [nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(6)]
    trained(nn.Sequential(*layers), [torch.ones(8, 32, 64)] * 3)


def gradients_that_add_up() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        with step("train", number):
            for _ in range(4):
                model(torch.ones(256, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def one_checkpoint_of_many_layers() -> None:
    blocks = [perceptron() for _ in range(6)]
    for number in range(4):
        with step("train", number):
            x = checkpoint(blocks[0], torch.ones(256, WIDTH), use_reentrant=False)
            for block in blocks[1:]:
                x = block(x)
            x.square().mean().backward()


def layers_of_many_sizes() -> None:
    sizes = [64, 64, 64, 64, 4096, 64]
    layers = [nn.Linear(one, other) for one, other in pairwise(sizes)]
    trained(nn.Sequential(*layers), [torch.ones(1024, 64)] * 4)


def two_optimizers() -> None:
    models = [perceptron() for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for number in range(4):
        with step("train", number):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.ones(256, WIDTH)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


def a_cache_with_room() -> None:
    """Its room is made once."""
    model = perceptron()
    cache = torch.zeros(64, 128, WIDTH)
    with torch.inference_mode():
        for number in range(8):
            with step("decode", number):
                cache[number] = model(torch.ones(128, WIDTH))


def requests_that_wait() -> None:
    """They wait for others most of the time, all at once."""
    model = perceptron().eval()

    async def answer() -> None:
        with torch.inference_mode():
            model(torch.ones(128, WIDTH))
        await asyncio.sleep(0.02)

    async def serve() -> None:
        await asyncio.gather(*[answer() for _ in range(20)])

    asyncio.run(serve())


def data_in_memory() -> None:
    rows = TensorDataset(torch.ones(1024, WIDTH))
    model = nn.Sequential(*[perceptron() for _ in range(4)])
    trained(model, (batch for (batch,) in DataLoader(rows, batch_size=256)))


def a_table_of_many_rows() -> None:
    table = nn.EmbeddingBag(10_000, WIDTH, sparse=True)
    model = perceptron()
    for number in range(4):
        with step("train", number):
            rows = table(torch.ones(256, 20, dtype=torch.long))
            model(rows).square().mean().backward()


def second_derivatives() -> None:
    """A penalty on gradients, so that backward passes compute with gradients themselves."""
    model = perceptron()
    for number in range(4):
        with step("train", number):
            x = torch.ones(256, WIDTH, requires_grad=True)
            loss = model(x).square().mean()
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + gradient.square().sum()).backward()


HEALTHY: list[Callable[[], None]] = [
    a_training_loop,
    a_generation,
    a_convolution_net,
    an_evaluation,
    ranks_of_one,
    a_loader_with_workers,
    under_autocast,
    a_servers_requests,
    compiled_and_warm,
    large_products_in_two_threads,
    a_recurrent_network,
    a_stack_of_equal_layers,
    gradients_that_add_up,
    one_checkpoint_of_many_layers,
    layers_of_many_sizes,
    two_optimizers,
    a_cache_with_room,
    requests_that_wait,
    data_in_memory,
    a_table_of_many_rows,
    second_derivatives,
]
