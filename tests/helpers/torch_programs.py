"""What the integration tests observe: a small language model that trains, and TorchScript that
forks.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH = 31, 16, 6


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward network, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.before_network = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Any) -> Any:
        normal = self.before_attention(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.network(self.before_network(x))


class LanguageModel(nn.Module):  # type: ignore[misc]
    """A transformer with one block."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.block = Block()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.block(self.tokens(tokens) + self.positions(torch.arange(LENGTH))))


class Training:
    """A model and what a step needs."""

    def __init__(self, batch: int = 2) -> None:
        self.model = LanguageModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.randint(VOCABULARY, (batch, LENGTH))

    def step(self) -> None:
        self.optimizer.zero_grad()
        logits = self.model(self.data)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.data.flatten())
        loss.backward()
        self.optimizer.step()


def scripted_programs() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A TorchScript module, and a function that forks twice and waits."""

    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    def fork_and_wait(x: torch.Tensor) -> torch.Tensor:
        first = torch.jit.fork(branch, x)
        second = torch.jit.fork(branch, x * 2)
        return torch.cat([torch.jit.wait(first), torch.jit.wait(second)])

    return scripted(nn.Sequential(nn.Linear(3, 3), nn.ReLU())), scripted(fork_and_wait)


def scripted(program: Any) -> Any:
    """A function or module as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in later versions
        return torch.jit.script(program)


def run_together(*works: Callable[[], object]) -> None:
    """Each in a thread of its own, all at once; the first exception is raised here."""
    together = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        together.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(work,), name=f"worker {number}")
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


class Reentrant(torch.autograd.Function):  # type: ignore[misc]
    """Gives its input less one; its backward runs the same forward and backward on what it gave,
    until that is negative.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, work: Callable[[], object]) -> Any:
        with torch.enable_grad():
            ctx.given = x.detach().requires_grad_() - 1
            ctx.work = work
        return ctx.given.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        if ctx.given >= 0:
            reentrant_training(ctx.given, ctx.work)
        else:
            ctx.work()
        return gradient * 1, None


def reentrant_training(x: Any, work: Callable[[], object] = lambda: None) -> None:
    """A backward within a backward, ``x`` deep, and work in the last one: every sixty, autograd
    goes on in another thread.
    """
    with torch.enable_grad():
        Reentrant.apply(x, work).sum().backward()
