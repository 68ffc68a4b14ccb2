"""What it costs to make rows of what was recorded: nanoseconds an operator, in drains of three
sizes, beside Kineto's end.

    python benchmarks/bench_drain.py [rounds]

A tiny model trains, so that the ranges are those of a real program: names, nesting, autograd's
sequence numbers. A drain has a thread of its own, as in a program, so it reads what another
processor may have written; the training waits meanwhile. Its processor time counts. Kineto's
events, which become readable when it stops, are the peer. Every side takes its turn in each round;
the median of all rounds stands beside the fastest, since other work on the machine makes most of
the difference.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.command_line import read_number, sized

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from torch.profiler import ProfilerActivity, profile

from helpers.torch_programs import Training
from otel_recfn import RecordScope
from otel_recfn.model.events import scopes_mask
from otel_recfn.pytorch.observer import TorchObserver
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.sources.protocol import Wanted

ROUNDS = sized(20, 1)
STEPS = sized((16, 4, 1), (1,))
WARM_STEPS = sized(100, 1)
OPERATORS = {RecordScope.FUNCTION, RecordScope.BACKWARD_FUNCTION}
"""What Kineto has too."""

Turn = Callable[[int], tuple[int, int]]
"""Trains so many steps: how many ranges they were, and the nanoseconds that it took to make them
readable.
"""


def main() -> None:
    """Every side once in each round."""
    rounds = read_number(__doc__, "rounds", ROUNDS)
    torch.set_num_threads(1)
    training = Training()
    train(training, WARM_STEPS)  # the first steps allocate what the others use again
    with ThreadPoolExecutor(1) as drains:
        sides: dict[str, Turn] = {
            "ours, drained": lambda steps: drained(training, steps, drains),
            "Kineto, stop()": lambda steps: stopped(training, steps),
        }
        for steps in STEPS:
            report(*in_turns(sides, steps, rounds))


def in_turns(sides: dict[str, Turn], steps: int, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """The ranges of a turn, and nanoseconds a range of each side, one for each round."""
    ranges = 0
    taken = {name: list[float]() for name in sides}
    for _ in range(rounds):
        for name, turn in sides.items():
            ranges, spent_ns = turn(steps)
            taken[name].append(spent_ns / ranges)
    return ranges, taken


def drained(training: Training, steps: int, drains: ThreadPoolExecutor) -> tuple[int, int]:
    ours = recorder
    dropped = ours.counters().dropped
    with observed(ours):
        train(training, steps)
        rows, spent_ns = drains.submit(timed, lambda: len(ours.drain())).result()
    if ours.counters().dropped != dropped:
        raise SystemExit("a turn is too long for the buffer: make it shorter (STEPS)")
    return rows, spent_ns


@contextmanager
def observed(ours: Any) -> Iterator[None]:
    """Nothing drains but the benchmark."""
    observer = TorchObserver()
    ours.start(scopes_mask(OPERATORS), DEFAULT_BUFFER_BYTES)
    observer.enable(Wanted())
    if not observer.enabled:
        raise SystemExit(observer.status().reason)
    try:
        yield
    finally:
        observer.disable()
        ours.stop()
        ours.drain(close_open=True)


def stopped(training: Training, steps: int) -> tuple[int, int]:
    one = profile(activities=[ProfilerActivity.CPU])
    one.start()
    train(training, steps)
    _, spent_ns = timed(one.stop)
    return len(one.events()), spent_ns


def train(training: Training, steps: int) -> None:
    for _ in range(steps):
        training.step()


def timed(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives, and the processor time of this thread."""
    began = time.thread_time_ns()
    return work(), time.thread_time_ns() - began


def report(ranges: int, taken: dict[str, list[float]]) -> None:
    ours = statistics.median(next(iter(taken.values())))
    print(f"{f'ns each, {ranges:,} at a time':<30}{'median':>10}{'fastest':>10}{'x ours':>8}")
    for name, each in taken.items():
        median = statistics.median(each)
        print(f"{name:<30}{median:>10,.0f}{min(each):>10,.0f}{median / ours:>8,.1f}")


if __name__ == "__main__":
    main()
