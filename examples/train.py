"""Trains a small transformer on text it makes itself, in OpenTelemetry spans of its own: an epoch,
a step.

It only uses the OpenTelemetry API and sets nothing up, so it runs

    python examples/train.py                                  plain, no spans anywhere
    opentelemetry-instrument python examples/train.py         with whatever OTEL_* says
    python examples/demo.py                                   with the demo's exporters
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import torch
from opentelemetry import trace
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from corpus import LETTERS, Windows, decode, encode, make_text
from language_model import LanguageModel

Batches = Iterator[list[Tensor]]
tracer = trace.get_tracer("examples.train")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="steps in all (default %(default)s)")
    parser.add_argument(
        "--epoch-steps", type=int, default=10, help="steps of an epoch (default %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=16, help="windows of text in a step (default %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that load data (default %(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="more gain little with a model so small (default %(default)s)",
    )
    parser.add_argument(
        "--layers", type=int, default=3, help="layers of the transformer (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="same seed, same losses (default %(default)s)"
    )
    return parser.parse_args(argv)


def train(options: argparse.Namespace) -> LanguageModel:
    """Trains from nothing and prints the loss as it falls.

    The text never repeats: an epoch is so many steps.
    """
    torch.set_num_threads(options.threads)
    with tracer.start_as_current_span("set up"):
        torch.manual_seed(options.seed)
        model = LanguageModel(len(LETTERS), layers=options.layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
        windows = Windows(
            make_text(20_000, options.seed),
            model.context,
            options.steps * options.batch_size,
            options.seed,
        )
    for epoch, first in enumerate(range(0, options.steps, options.epoch_steps)):
        steps = range(first, min(first + options.epoch_steps, options.steps))
        with tracer.start_as_current_span("epoch", attributes={"epoch": epoch}):
            run_epoch(model, optimizer, iter(make_loader(windows, steps, options)), steps)
    return model


def run_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, steps: range
) -> None:
    """Some steps, then a line on how it went."""
    started, losses = time.perf_counter(), []
    for step in steps:
        with tracer.start_as_current_span("step", attributes={"step": step}) as span:
            losses.append(run_step(model, optimizer, batches))
            span.set_attribute("loss", losses[-1])
    milliseconds = (time.perf_counter() - started) / len(steps) * 1000
    print(
        f"step {steps[-1] + 1:4d}   loss {sum(losses) / len(losses):.3f}   {milliseconds:5.1f} ms a"
        " step",
        flush=True,
    )


def make_loader(
    windows: Windows, steps: range, options: argparse.Namespace
) -> DataLoader[tuple[Tensor, Tensor]]:
    """The windows of text of these steps, cut by worker processes."""
    size = options.batch_size
    part = Subset(windows, range(steps[0] * size, (steps[-1] + 1) * size))
    return DataLoader(part, batch_size=size, num_workers=options.workers)


def run_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> float:
    """One batch: load, forward, loss, backward, optimizer."""
    tokens, following = next(batches)
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, then lets the model write."""
    model = train(arguments(argv)).eval()
    with tracer.start_as_current_span("write"):
        text = decode(model.generate(encode("\n"), 60))
    print("it writes: " + " / ".join(text.strip().splitlines()), flush=True)


if __name__ == "__main__":
    main()
